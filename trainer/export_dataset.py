"""`python -m trainer.export_dataset`."""

import sys

if __name__ == "__main__":
    from trainer.commands.export_dataset import main

    sys.exit(main())
