"""`python -m trainer.push`."""

import sys

if __name__ == "__main__":
    from trainer.commands.push import main

    sys.exit(main())
