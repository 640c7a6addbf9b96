"""One job of `works.py` by this trainer; prints the JSON line that the drivers of other libraries print.

    python -m benchmarks.peer_ours --env CartPole-v1 --n-envs 16

The wall time is that of the training loop: from the collectors' start to the last update. Building the processes counts
as `startup_s`, as for the other libraries.
"""

from __future__ import annotations

import argparse
import math
from importlib.metadata import PackageNotFoundError, version


def main() -> None:
    from benchmarks.works import WORKS, arguments

    parser = argparse.ArgumentParser(description="One job by this trainer, as a JSON line.")
    parser.add_argument("--env", default="CartPole-v1", choices=WORKS)
    parser.add_argument("--steps", type=int, default=0, help="frames; 0: the job's own")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="threads of the learner")
    parser.add_argument("--n-envs", type=int, default=16, help="of each worker")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="further keys of the trainer")
    args = parser.parse_args()
    from benchmarks import parts
    from benchmarks.machine import Meter, peer_line

    steps = args.steps or WORKS[args.env].steps
    keys = arguments(args.env, steps, args.seed, args.threads, args.n_envs, args.workers)
    with parts.opened(parts.config(*keys, *args.set)) as system:
        meter = Meter()
        trained = parts.train(system)
        meter.stop()
        episodes = float(system.telemetry[0].row(trained.updates, {})["return_mean"])
    print(
        peer_line(
            meter, trained.frames, trained.updates, trained.wall_s, peer="ours", version=_version(), env=args.env,
            seed=args.seed, threads=args.threads, n_envs=args.n_envs, workers=args.workers,
            mean_return_100=None if math.isnan(episodes) else episodes,
        ),
        flush=True,
    )  # fmt: skip


def _version() -> str:
    try:
        return version("torchrl-trainer")
    except PackageNotFoundError:
        return "checkout"


if __name__ == "__main__":
    main()
