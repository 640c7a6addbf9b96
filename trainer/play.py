"""`python -m trainer.play`."""

import sys

if __name__ == "__main__":
    from trainer.commands.play import main
    from trainer.host.leaving import leave_soon

    sys.exit(leave_soon(main()))
