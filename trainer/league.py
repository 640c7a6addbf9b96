"""`python -m trainer.league`."""

import sys

if __name__ == "__main__":
    from trainer.commands.league import main
    from trainer.host.leaving import leave_soon

    sys.exit(leave_soon(main()))
