"""`python -m trainer.timeline`."""

import sys

if __name__ == "__main__":
    from trainer.commands.timeline import main

    sys.exit(main())
