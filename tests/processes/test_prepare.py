"""Recording the update before the run: of the right form, and without a trace in what is learned."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch

from trainer.algorithms import build
from trainer.config.algorithms import DQNConfig
from trainer.config.sections import LearnerConfig
from trainer.envs import DiscreteAction, EnvSpec, Leaf
from trainer.learning.feed import flat as tensors_of
from trainer.learning.update import Updater
from trainer.replay.buffer import StreamReplay, Transitions
from trainer.replay.streams import StreamLayout, open_storage
from trainer.replay.uniform import StreamSampler

SPECS = {
    "vector": EnvSpec("vector", (Leaf("observation", (4,), "float32", "vector"),), DiscreteAction(3)),
    "stacked, masked": EnvSpec(
        "stacked",
        (
            Leaf("observation.a", (2, 3), "float32", "vector", stack=3),
            Leaf("observation.b", (1,), "int64", "discrete", nvec=(5,)),
        ),
        DiscreteAction(4, has_mask=True),
    ),
    "image": EnvSpec("image", (Leaf("observation", (36, 36), "uint8", "image", "hw", stack=2),), DiscreteAction(4)),
}
BATCH = 8


def open_replay(spec: EnvSpec, n_step: int, folder: Path) -> StreamReplay:
    """A replay of 2 streams of 32 rows; 20 of each are published, and no episode ends in them."""
    streams = StreamLayout(num_workers=1, envs_per_worker=2, ring=32)
    storage = open_storage(spec, streams, folder)
    cursor = np.full(2, 20)
    sampler = StreamSampler(cursor, streams, ahead=n_step, behind=spec.stack - 1, seed=1)
    if spec.action.has_mask:
        storage._storage["action_mask"].fill_(True)
    columns = {name: column.numpy() for name, column in storage._storage.items()}
    return StreamReplay(Transitions(spec, columns, streams, cursor, 0.9, n_step), sampler, BATCH)


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("name", SPECS)
def test_the_example_has_the_form_of_a_batch(name: str, n_step: int, tmp_path: Path) -> None:
    replay = open_replay(SPECS[name], n_step, tmp_path)
    replay.sampler.cursor[:] = 0  # nothing is written yet
    example = [(key, tensor.shape, tensor.dtype) for key, tensor in tensors_of(replay.example()).items()]
    replay.sampler.cursor[:] = 20
    # In the same order: a recorded update takes them by their place.
    assert example == [(key, tensor.shape, tensor.dtype) for key, tensor in tensors_of(replay.sample()).items()]


@pytest.mark.parametrize("execution", ["trace", "eager"])
@pytest.mark.parametrize("name", SPECS)
def test_preparing_leaves_no_trace_in_what_is_learned(name: str, execution: str, tmp_path: Path) -> None:
    spec, target = SPECS[name], DQNConfig(hidden_sizes=[8], target_update_every_updates=2)
    config = LearnerConfig(batch_size=BATCH, execution=execution, learning_rate=1e-2)
    torch.manual_seed(0)
    loss = build(target, config, spec)
    prepared, plain = (Updater(copy.deepcopy(loss), config, torch.device("cpu")) for _ in range(2))
    replay = open_replay(spec, 1, tmp_path)
    prepared.prepare(tensors_of(replay.example()))
    for tensor, same in zip(flat(prepared), flat(plain), strict=True):
        assert torch.equal(tensor, same)
    batches = [tensors_of(replay.sample()) for _ in range(5)]
    for batch in batches:
        for learner in (prepared, plain):
            learner.update(batch)
    for tensor, same in zip(flat(prepared), flat(plain), strict=True):
        assert torch.equal(tensor, same)
    assert prepared.metrics() == plain.metrics()


def flat(learner: Updater) -> list[torch.Tensor]:
    """Weights, targets and moments."""
    moments = [tensor for state in learner.optimizer.state.values() for tensor in state.values()]
    return [*learner.parts[0].inputs, *moments]
