"""`python -m trainer.play`."""

import sys

if __name__ == "__main__":
    from trainer.commands.play import main

    sys.exit(main())
