"""Arguments that name a finished run or a policy, for eval and play."""

from __future__ import annotations

import argparse
from pathlib import Path

from trainer.api.evaluation import SEED
from trainer.api.sources import HUB


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that eval and play share."""
    parser.add_argument("run", type=source, help="the run's folder, a policy file, or hub:owner/name")
    parser.add_argument(
        "--policy", default="best", help="best, last, or the frames of one in RUN/checkpoints/policies (default: best)"
    )
    parser.add_argument("--trust", action="store_true", help="import parts that a policy file's author made")
    parser.add_argument("--seed", type=int, default=SEED, help=f"of the first environment (default: {SEED})")


def from_here(text: str) -> Path:
    """The absolute path, as an environment may change the working folder."""
    return Path(text).absolute()


def source(text: str) -> Path | str:
    """A path made absolute, or a name in the hub."""
    return text if text.startswith(HUB) else from_here(text)
