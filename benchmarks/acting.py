"""Time of a vector step's actions for several agents in one world, against a pass for each agent.

    python -m benchmarks.acting [--json FILE] [--seconds 0.5]

The observations have 50 numbers, there are 5 actions, and IQN acts by 12 quantiles. Agents with small networks act in
one stacked pass; the row says which way `AgentPolicies` took.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from benchmarks.report import Row, parser, show

ALGORITHMS, WIDTHS, AGENTS, ENVIRONMENTS = ("dqn", "iqn"), (64, 250), (1, 2, 5, 10), (16, 64)
NUMBERS, ACTIONS, QUANTILES = 50, 5, 12
BAR = 0.95  # never slower than a pass for each agent; a twentieth is left to noise


def in_turns(functions: tuple[Callable[[], object], ...], seconds: float) -> list[float]:
    """Median seconds of a call of each function, called in turns for `seconds`."""
    times: list[list[float]] = [[] for _ in functions]
    for function in functions * 2:
        function()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for function, measured in zip(functions, times, strict=True):
            start = time.perf_counter()
            function()
            measured.append(time.perf_counter() - start)
    return [statistics.median(measured) for measured in times]


def measure(name: str, width: int, agents: int, environments: int, seconds: float) -> Row:
    """Time of a pass for each agent divided by the time of `AgentPolicies.act`."""
    import numpy as np
    import torch

    from trainer.acting.multi_agent import LARGEST_STACKED_FLOP, AgentPolicies, flop
    from trainer.acting.policies import greedy_policy
    from trainer.algorithms import build
    from trainer.config.algorithms import AnyAlgorithmConfig, section_of
    from trainer.config.sections import LearnerConfig
    from trainer.envs.actions import DiscreteAction
    from trainer.envs.spec import EnvSpec, Leaf
    from trainer.memory.weights import flatten_parameters

    spec = EnvSpec("benchmark", (Leaf("observation", (NUMBERS,), "float32", "vector"),), action=DiscreteAction(ACTIONS))
    every = AnyAlgorithmConfig(
        hidden_sizes=[width, width], dueling=name == "iqn", noisy=True, num_acting_fractions=QUANTILES
    )
    policies = [build(section_of(every, name), LearnerConfig(), spec).policy for _ in range(agents)]
    networks, flats = [policy.module[0].module for policy in policies], [flatten_parameters(p) for p in policies]
    rng, seeds = np.random.default_rng(0), [[agent] for agent in range(agents)]
    seen = [([rng.random((environments, NUMBERS), np.float32)], None) for _ in range(agents)]
    with torch.inference_mode():
        one_by_one = [greedy_policy(net, *own, seed) for net, own, seed in zip(networks, seen, seeds, strict=True)]
        stacked = flop(networks[0], *seen[0]) <= LARGEST_STACKED_FLOP and agents > 1
        together = AgentPolicies(networks, flats, [0] * agents, seen, seeds)
        loop_s, ours_s = in_turns(
            (
                lambda: [policy(*own) for policy, own in zip(one_by_one, seen, strict=True)],
                lambda: together.act(seen),
            ),
            seconds,
        )
    way = "stacked" if stacked else "one by one"
    detail = f"{way}: {ours_s * 1e3:.3f} ms; a pass for each agent: {loop_s * 1e3:.3f} ms"
    return Row(f"{name}, width {width}, {agents} agents, {environments} environments", loop_s / ours_s, "x", BAR,
               detail=detail)  # fmt: skip


def main() -> None:
    options = parser("Acting of several agents in one world", seconds=0.5).parse_args()
    import torch

    from trainer.host.resources import prepare_process

    prepare_process()
    torch.set_num_threads(1)  # as a collector worker
    rows = [
        measure(name, width, agents, environments, options.seconds)
        for name in ALGORITHMS
        for width in WIDTHS
        for environments in ENVIRONMENTS
        for agents in AGENTS
    ]
    show("Acting of several agents: a pass for each agent / AgentPolicies", rows, options.json)


if __name__ == "__main__":
    main()
