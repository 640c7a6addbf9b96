"""Every seed of a run in one table; no other file calculates one.

Environments: a run has a million seeds of its own, below 2**32 whatever its seed is, as many programs take no more:

    0 ..        training: start * 10,000 + number of the stream; after 50 starts they come again
    500,000 ..  evaluations, the final one behind them
    700,000 ..  the league

Networks, samplers, exploration: the run's seed and who draws (`of_agent` and what follows it).

The global generators of NumPy, Python and torch: processes that are forked from one server inherit the same state of
all three, so each is seeded by its role, number and start (`seed_globals`). Who shares a process with others keeps a
state of its own (`apart`).
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
MAX_STARTS = 50  # so many fit before the seeds of evaluations; then they come again
EVALUATIONS, LEAGUE = 500_000, 700_000
AGENT_SEEDS = 7_919  # between the seeds of two agents
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
)  # new ones behind them


def first_of_run(seed: int) -> int:
    """The first of a run's environment seeds: a million times its own, or where that leads beyond the limit, drawn."""
    first = seed * SEEDS_PER_RUN
    if first + SEEDS_PER_RUN <= LIMIT:
        return first
    return int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]) % (LIMIT - SEEDS_PER_RUN)


def of_worker(seed: int, stream: int, start: int) -> int:
    """Of a worker's first sub-environment, which is `stream` of all; others for each time that it is started."""
    return first_of_run(seed) + start % MAX_STARTS * SEEDS_PER_START + stream


def of_evaluation(seed: int) -> int:
    """Of an evaluation's first sub-environment; every evaluation of a run has the same."""
    return first_of_run(seed) + EVALUATIONS


def of_final_evaluation(seed: int, num_envs: int) -> int:
    """The same for the final evaluation, behind the `num_envs` of the others."""
    return of_evaluation(seed) + num_envs


def of_league(seed: int) -> int:
    """Of a league's first game."""
    return first_of_run(seed) + LEAGUE


def of_agent(seed: int, number: int) -> int:
    """Of an agent's network and sampler, and what its exploration is seeded with."""
    return seed + number * AGENT_SEEDS


def of_updates(seed: int, number: int = 0) -> int:
    """Of what updates draw from torch, as noisy layers do."""
    return seed + 1 + number


def of_exploration(agent: int, worker: int, start: int) -> list[int]:
    """Of a worker's random actions for an agent; `agent` is `of_agent`'s."""
    return [agent, worker, *([start] if start else [])]


def of_noise(agent: int, worker: int, start: int) -> list[int]:
    """Of the noise of an agent's noisy layers in a worker."""
    return [agent, worker, 1, *([start] if start else [])]


def of_opponents(agent: int, worker: int, start: int) -> list[int]:
    """Of the opponents that a worker draws for an agent."""
    return [agent, worker, 2, start]


def seed_globals(seed: int, role: str, number: int = 0, start: int = 0, stage: int = 0) -> None:
    """Seed `numpy.random`, `random` and `torch` of this process.

    Args:
        seed: of the run, or of an evaluation's first sub-environment.
        role: one of `ROLES`.
        number: of those that have the role.
        start: how many had the number before.
        stage: 0 before environments are made, 1 before their first reset: what libraries draw in between differs
            between a process of its own and one for all.
    """
    sequence = np.random.SeedSequence([seed, ROLES.index(role), number, start, stage, 1])  # 1: zeros at the end vanish
    python, numpy_, torch_ = (int(word) for word in sequence.generate_state(3))
    random.seed(python)
    np.random.seed(numpy_)
    torch.manual_seed(torch_)


def global_state() -> dict[str, Any]:
    """Where the three generators stand, of tensors and plain values; torch's on the CPU."""
    version, words, gauss = random.getstate()
    numpy_ = np.random.get_state(legacy=False)
    key = torch.from_numpy(numpy_["state"]["key"].astype(np.int64))
    return {
        "random": [version, list(words), gauss],
        "numpy": {**numpy_, "state": {**numpy_["state"], "key": key}},
        "torch": torch.get_rng_state(),
    }


def set_global_state(state: dict[str, Any]) -> None:
    """Go on from what `global_state` gave."""
    version, words, gauss = state["random"]
    random.setstate((version, tuple(words), gauss))
    numpy_ = state["numpy"]
    key = numpy_["state"]["key"].numpy().astype(np.uint32)
    np.random.set_state({**numpy_, "state": {**numpy_["state"], "key": key}})
    torch.set_rng_state(state["torch"])


@contextmanager
def apart(own: dict[str, Any]) -> Iterator[None]:
    """Within it the generators stand where `own` left them, which is kept up to date; an empty one: as they are."""
    before = _states()
    if own:
        _set_states(own["states"])
    try:
        yield
    finally:
        own["states"] = _states()
        _set_states(before)


def _states() -> tuple[Any, Any, torch.Tensor]:
    return random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state()


def _set_states(states: tuple[Any, Any, torch.Tensor]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
