"""All seeds of a run; no other file computes one.

Environments: each run has a range of a million seeds, below 2**32, the limit of many libraries. In this range are

    0 ..        training: start * 10,000 + number of the stream; after 50 starts the seeds repeat
    500,000 ..  evaluations, followed by those of the final evaluation
    700,000 ..  the league

Networks, samplers and exploration: from the run's seed and a number for each use (`of_agent` and the functions after
it).

The global generators of NumPy, Python and torch: processes forked from one server inherit the same state of all three,
so each is seeded by its role, number and start (`seed_globals`). Where roles share a process, each has a state of its
own (`apart`).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

LIMIT = 2**32  # of environment seeds
SEEDS_PER_RUN = 1_000_000
SEEDS_PER_START = 10_000  # more than a run has sub-environments
MAX_STARTS = 50  # then the seeds repeat, as those of evaluations follow
EVALUATIONS, LEAGUE = 500_000, 700_000
AGENT_SEEDS = 7_919  # difference between the seeds of two agents
ROLES = (
    "main",
    "collector",
    "learner",
    "agent",
    "evaluator",
    "league",
    "play",
    "describe",
    "resume",
    "gateway",
)  # add new roles at the end, as their positions are part of the seeds


def first_of_run(seed: int) -> int:
    """First environment seed of a run: a million times the run's seed, or, if that exceeds `LIMIT`, a random one."""
    first = seed * SEEDS_PER_RUN
    if first + SEEDS_PER_RUN <= LIMIT:
        return first
    return int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]) % (LIMIT - SEEDS_PER_RUN)


def of_worker(seed: int, stream: int, start: int) -> int:
    """Seed of a worker's first sub-environment.

    Args:
        seed: of the run.
        stream: number of that sub-environment among those of all workers.
        start: how often the worker was restarted.
    """
    return first_of_run(seed) + start % MAX_STARTS * SEEDS_PER_START + stream


def of_evaluation(seed: int) -> int:
    """Seed of the first sub-environment of an evaluation, the same for all evaluations of a run."""
    return first_of_run(seed) + EVALUATIONS


def of_final_evaluation(seed: int, num_envs: int) -> int:
    """Seed of the first sub-environment of the final evaluation; other evaluations have `num_envs`."""
    return of_evaluation(seed) + num_envs


def of_league(seed: int) -> int:
    """Seed of the first game of a league."""
    return first_of_run(seed) + LEAGUE


def of_agent(seed: int, number: int) -> int:
    """Seed of an agent's network and sampler; its exploration is derived from it."""
    return seed + number * AGENT_SEEDS


def of_updates(seed: int, number: int = 0) -> int:
    """Seed of what updates draw from torch, as the noise of noisy layers."""
    return seed + 1 + number


def of_update_noise(agent: int) -> int:
    """Seed of the noise that the parts of an agent's updates are given; `agent` is the result of `of_agent`."""
    return int(np.random.SeedSequence([agent, 1]).generate_state(1, np.uint64)[0]) % 2**63


def of_exploration(agent: int, worker: int, start: int) -> list[int]:
    """Seed of a worker's random actions for an agent; `agent` is the result of `of_agent`."""
    return [agent, worker, *([start] if start else [])]


def of_noise(agent: int, worker: int, start: int) -> list[int]:
    """Seed of the noise of an agent's noisy layers in a worker; `agent` is the result of `of_agent`."""
    return [agent, worker, 1, *([start] if start else [])]


def of_opponents(agent: int, worker: int, start: int) -> list[int]:
    """Seed of the opponents that a worker draws for an agent; `agent` is the result of `of_agent`."""
    return [agent, worker, 2, start]


def of_random_actions(agent: int, worker: int, start: int) -> list[int]:
    """Seed of a worker's actions during `collector.random_frames`; `agent` is the result of `of_agent`."""
    return [agent, worker, 3, start]


def of_reset_opponents(opponents: list[int], seed: int) -> list[int]:
    """Of a world's opponents once its games are reset with `seed`; `opponents` is `of_opponents`'s."""
    return [*opponents, seed]


def of_random_player(seed: int, agent: int) -> int:
    """Of the random player in an agent's place, in an evaluation whose first sub-environment has `seed`."""
    return seed + agent


def of_game(first: int, played: int) -> int:
    """Of the game that follows `played` others, the first of which had the seed `first`."""
    return first + played


def seed_globals(seed: int, role: str, number: int = 0, start: int = 0, stage: int = 0) -> None:
    """Seed `numpy.random`, `random` and `torch` of this process.

    Args:
        seed: of the run, or of an evaluation's first sub-environment.
        role: one of `ROLES`.
        number: of the process among those of the role.
        start: how often the process was restarted.
        stage: 0 before environments are made, 1 before their first reset. What libraries draw in between depends on
            whether each role has a process of its own.
    """
    sequence = np.random.SeedSequence(
        [seed, ROLES.index(role), number, start, stage, 1]
    )  # 1: trailing zeros are ignored
    python, numpy_, torch_ = (int(word) for word in sequence.generate_state(3))
    random.seed(python)
    np.random.seed(numpy_)
    torch.manual_seed(torch_)


def global_state() -> dict[str, Any]:
    """States of the three generators (torch's on the CPU), as tensors and plain values for a checkpoint."""
    version, words, gauss = random.getstate()
    numpy_ = np.random.get_state(legacy=False)
    key = torch.from_numpy(numpy_["state"]["key"].astype(np.int64))
    return {
        "random": [version, list(words), gauss],
        "numpy": {**numpy_, "state": {**numpy_["state"], "key": key}},
        "torch": torch.get_rng_state(),
    }


def set_global_state(state: dict[str, Any]) -> None:
    """Set the generators to a result of `global_state`."""
    version, words, gauss = state["random"]
    random.setstate((version, tuple(words), gauss))
    numpy_ = state["numpy"]
    key = numpy_["state"]["key"].numpy().astype(np.uint32)
    np.random.set_state({**numpy_, "state": {**numpy_["state"], "key": key}})
    torch.set_rng_state(state["torch"])


@contextmanager
def apart(generators: dict[str, Any]) -> Iterator[None]:
    """Use other states of the global generators within the context.

    Args:
        generators: has the states under "states", and takes them at the end; empty: go on from the present states.
    """
    before = _states()
    if generators:
        _set_states(generators["states"])
    try:
        yield
    finally:
        generators["states"] = _states()
        _set_states(before)


def _states() -> tuple[Any, Any, torch.Tensor]:
    return random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state()


def _set_states(states: tuple[Any, Any, torch.Tensor]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
