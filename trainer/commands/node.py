"""A node of a run: `python -m trainer.node`, which the run starts on another machine, with a line on standard input."""

from __future__ import annotations

import json
import sys

from trainer.config.parts import import_from_here
from trainer.training.node import run


def main() -> int:
    """Collect for a run until it ends.

    Returns:
        The exit code: 0, or 1 if the node was refused or has failed; stderr says why.
    """
    import_from_here()
    try:
        call = json.loads(sys.stdin.readline())
        address, key, number = tuple(call["address"]), bytes.fromhex(call["key"]), int(call["number"])
    except (ValueError, KeyError, TypeError):
        print("error: a run starts its nodes by itself: python -m trainer.run cluster=ray --help", file=sys.stderr)
        return 2
    return run(address, key, number, sys.stdin.fileno())
