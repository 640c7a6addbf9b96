"""Time of an update of four agents with an actor each: one by one, and in a stack (`agents.learner=stacked`).

    python -m benchmarks.stacks [--json FILE] [--seconds 0.5]

The observations have 12 numbers and the actions two; one thread. The row says what `can_be_stacked` chooses.
"""

from __future__ import annotations

from typing import Any

from benchmarks.acting import in_turns
from benchmarks.report import Row, parser, show

AGENTS, NUMBERS, ALGORITHMS = 4, 12, ("sac", "td3")
SIZES = ((32, 64), (64, 64), (64, 256), (128, 64), (128, 128), (128, 256), (256, 64), (256, 256))  # width, batch


def batch_of(size: int) -> dict[Any, Any]:
    """A random batch of the form that the replay gives."""
    import torch

    ends = torch.zeros(size, 1, dtype=torch.bool)
    return {
        "action": torch.rand(size, 2),
        "observation": torch.randn(size, NUMBERS),
        ("next", "observation"): torch.randn(size, NUMBERS),
        ("next", "reward"): torch.randn(size, 1),
        **{("next", name): ends for name in ("terminated", "truncated", "done")},
    }


def measure(name: str, width: int, size: int, seconds: float) -> Row:
    """Time of an update of each agent divided by the time of `Stack.update`."""
    import torch

    from trainer.algorithms import build
    from trainer.config.algorithms import AnyAlgorithmConfig, section_of
    from trainer.config.sections import LearnerConfig
    from trainer.envs import BoxAction, EnvSpec, Leaf
    from trainer.learning.stacking import Stack, can_be_stacked
    from trainer.learning.update import Updater

    leaf = Leaf("observation", (NUMBERS,), "float32", "vector")
    spec = EnvSpec("benchmark", (leaf,), BoxAction((2,), (-1.0, -1.0), (1.0, 1.0)))
    section = section_of(AnyAlgorithmConfig(hidden_sizes=[width, width], target_tau=0.005), name)
    config = LearnerConfig(batch_size=size, parallel_parts=False)

    def updaters() -> list[Updater]:
        return [Updater(build(section, config, spec), config, torch.device("cpu")) for _ in range(AGENTS)]

    alone, stack, batch = updaters(), Stack(updaters()), batch_of(size)
    for _ in range(2):  # TD3's actor is recorded with the rest, and TorchScript optimises in its second call
        stack.update([batch] * AGENTS)
    loop_s, stack_s = in_turns(
        (
            lambda: [one.update(batch) for _ in range(2) for one in alone],
            lambda: [stack.update([batch] * AGENTS) for _ in range(2)],
        ),
        seconds,
    )
    way = "stacked" if can_be_stacked(alone[0]) else "one by one"
    detail = f"in a run {way}; one by one {loop_s / 2 * 1e3:.2f} ms, stacked {stack_s / 2 * 1e3:.2f} ms"
    return Row(f"{name}, width {width}, batch {size}", loop_s / stack_s, "x", detail=detail)


def main() -> None:
    options = parser("Updates of several agents with an actor", seconds=0.5).parse_args()
    import torch

    torch.set_num_threads(1)
    rows = [measure(name, width, size, options.seconds) for name in ALGORITHMS for width, size in SIZES]
    show("Updates of four agents: one by one / in a stack", rows, options.json)


if __name__ == "__main__":
    main()
