"""``python -m trainer.plot``."""

import sys

if __name__ == "__main__":
    from trainer.telemetry.plot import main

    sys.exit(main())
