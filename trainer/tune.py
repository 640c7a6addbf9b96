"""`python -m trainer.tune`."""

import sys

if __name__ == "__main__":
    from trainer.commands.tune import main

    sys.exit(main())
