"""`python -m trainer.plot`."""

import sys

if __name__ == "__main__":
    from trainer.commands.plot import main

    sys.exit(main())
