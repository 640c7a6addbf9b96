"""`python -m trainer.export_dataset`."""

import sys

if __name__ == "__main__":
    from trainer.commands.export_dataset import main
    from trainer.host.leaving import leave_soon

    sys.exit(leave_soon(main()))
