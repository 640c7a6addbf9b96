"""Frames per second of one collector process against a bare loop over the same environments.

    python -m benchmarks.collection [--json FILE]

The collector is the trainer's: its process, its rollout and its writes into the shared replay, without a learner. The
bare loop is what one would write by hand: the same vector environment with next-step autoreset, the same network and
weights in inference mode with argmax, the same columns stored into preallocated arrays. They take turns: while the bare
loop runs, the collector's process is stopped.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from benchmarks.report import Row, parser, show

if TYPE_CHECKING:
    from trainer.training.system import System

BLOCK = 64  # vector steps between two looks of the bare loop at the clock
STEPPING_1_MS = ("preset=generic", "env.id=counting", "env.backend=counting", "env.kwargs.step_seconds=0.001")
CASES = {  # name -> (configuration, sub-environments, bar)
    "CartPole-v1, 16 sub-environments": (("preset=cartpole",), 16, 0.80),
    "CartPole-v1, 64 sub-environments": (("preset=cartpole",), 64, 0.80),
    "1 ms a vector step, 16 sub-environments": (STEPPING_1_MS, 16, 0.95),
}
# The policy does not change; a few actions are random, as at the end of a training run.
COMMON = ("algorithm.hidden_sizes=[120,84]", "collector.epsilon_start=0.05", "collector.epsilon_end=0.05")


def bare_loop(system: System) -> Callable[[float], float]:
    """A function of seconds that steps the system's environments by hand and returns frames per second."""
    import numpy as np
    import torch

    from trainer import envs
    from trainer.algorithms import make_policy
    from trainer.memory.weights import flatten_parameters
    from trainer.replay.streams import row_spec

    config, spec = system.config, system.plans[0].spec
    policy = make_policy(config, spec)
    system.plans[0].weights.reader().pull(flatten_parameters(policy))
    network = policy.module[0].module
    vector = envs.make(config.env, config.collector.envs_per_worker)
    n, ring = vector.num_envs, config.replay.capacity_frames // config.collector.envs_per_worker // BLOCK * BLOCK
    rows: dict[str, Any] = {name: np.zeros((ring, n, *shape), dtype) for name, (shape, dtype) in row_spec(spec).items()}
    observation, ended, time_step = vector.reset(config.seed), np.zeros(n, bool), 0

    def run(seconds: float) -> float:
        nonlocal observation, ended, time_step
        frames, start = 0, time.perf_counter()
        while (now := time.perf_counter()) - start < seconds:
            first = time_step % ring
            for i in range(first, first + BLOCK):
                for name, array in observation.items():
                    rows[name][i] = array
                rows["final"][i] = ended
                with torch.inference_mode():
                    action = network(*map(torch.from_numpy, observation.values())).argmax(-1).numpy()
                rows["action"][i] = action
                observation, reward, terminated, truncated = vector.step(action)
                rows["reward"][i], rows["terminated"][i], rows["truncated"][i] = reward, terminated, truncated
                ended = terminated | truncated
            time_step += BLOCK
            # What follows a final observation is a reset and no frame.
            frames += BLOCK * n - np.count_nonzero(rows["final"][first : first + BLOCK])
        return frames / (now - start)

    return run


def measure(name: str, seconds: float, repeats: int) -> Row:
    """The row of one of `CASES`."""
    from benchmarks import parts

    arguments, envs_per_worker, bar = CASES[name]
    config = parts.config(
        *arguments, *COMMON, parts.BUDGET, f"collector.envs_per_worker={envs_per_worker}", "algorithm.n_step=1"
    )
    with parts.opened(config) as system:
        system.plans[0].board.frame_limit[0] = parts.NO_LIMIT
        parts.wait_until_stepping(system)
        parts.pause(system)

        def worker() -> float:
            parts.resume(system)
            rate = parts.collected_per_s(system, seconds)
            parts.pause(system)
            return rate

        bare = bare_loop(system)
        bare(0.2)
        found = parts.by_turns({"worker": worker, "bare": lambda: bare(seconds)}, repeats)
    rates = {who: statistics.median(values) for who, values in found.items()}
    detail = f"worker {rates['worker']:,.0f}, bare loop {rates['bare']:,.0f} frames/s"
    return Row(f"collection, {name}", parts.ratio(found["worker"], found["bare"]), bar=bar, detail=detail)


def main() -> None:
    args = parser("Frames per second of a collector process against a bare loop.").parse_args()
    from benchmarks.machine import Meter

    meter = Meter()
    rows = [measure(name, args.seconds, args.repeats) for name in CASES]
    show("Collection: one collector process / bare loop", rows, args.json, meter.stop().note())


if __name__ == "__main__":
    main()
