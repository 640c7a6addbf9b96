"""`python -m trainer.eval`."""

import sys

if __name__ == "__main__":
    from trainer.commands.eval import main

    sys.exit(main())
