"""Agent-steps per second of each grid world with random actions, on one core.

    python -m benchmarks.worlds [--json FILE]

An agent-step is one action of one agent; the random choice of actions and the resets after `max_turns` are part of it.
NumPy uses one core here, and CPU seconds are counted, so other work on the machine has less effect. The result is the
best of several repeats.
"""

from __future__ import annotations

import time

from benchmarks.report import Row, parser, show

NUM_WORLDS = 128


def agent_steps_per_s(name: str, num_worlds: int, seconds: float, repeats: int) -> float:
    """Agent-steps per second of a world with its defaults: the best of the repeats, each of so many CPU seconds."""
    import numpy as np

    from trainer.envs.worlds import WORLDS

    world = WORLDS[name](num_worlds)
    shape = (num_worlds, len(world.agents))
    generator = np.random.default_rng(0)
    best = 0.0
    for repeat in range(repeats):
        turns, start = 0, time.process_time()
        while (now := time.process_time()) - start < seconds:
            world.reset(repeat * 10**9 + turns)
            for _ in range(world.max_turns):
                world.step(generator.integers(world.num_actions, size=shape))
            turns += world.max_turns
        best = max(best, turns * shape[0] * shape[1] / (now - start))
    return best


def main() -> None:
    made = parser("Agent-steps per second of each grid world, on one core.", seconds=1.0)
    made.add_argument("--num-worlds", type=int, default=NUM_WORLDS, help=f"worlds in lockstep ({NUM_WORLDS})")
    args = made.parse_args()
    from benchmarks.machine import Meter
    from trainer.envs.worlds import WORLDS

    meter = Meter()
    rates = {name: agent_steps_per_s(name, args.num_worlds, args.seconds, args.repeats) for name in WORLDS}
    rows = [Row(f"{name}, agent-steps on one core", rate, "1/s") for name, rate in rates.items()]
    show(f"Worlds: {args.num_worlds} in lockstep, random actions", rows, args.json, meter.stop().note())


if __name__ == "__main__":
    main()
