"""`python -m trainer.node`: a node of a run whose collectors are on other machines; the run starts it, not the user."""

import sys

if __name__ == "__main__":
    from trainer.commands.node import main
    from trainer.host.leaving import leave_soon

    sys.exit(leave_soon(main()))
