"""`python -m trainer.run`; imported again by every child process, so it imports next to nothing."""

import gc
import sys

if __name__ == "__main__":
    from trainer.commands.run import main
    from trainer.host.leaving import leave_soon

    code = leave_soon(main())
    gc.freeze()  # Python need not take all that was imported apart: 0.2 s until the process has ended, not 1.5 s
    sys.exit(code)
