"""`python -m trainer.eval`."""

import sys

if __name__ == "__main__":
    from trainer.commands.eval import main
    from trainer.host.leaving import leave_soon

    sys.exit(leave_soon(main()))
