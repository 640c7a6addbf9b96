"""`python -m trainer.league`."""

import sys

if __name__ == "__main__":
    from trainer.commands.league import main

    sys.exit(main())
