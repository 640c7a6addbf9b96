"""`python -m trainer.report`."""

import sys

if __name__ == "__main__":
    from trainer.commands.report import main

    sys.exit(main())
