"""Running statistics of observations and rewards: their numbers, and that they go wherever the policy goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

import trainer
from trainer import envs
from trainer.algorithms import make_policy
from trainer.config.algorithms import DQNConfig
from trainer.config.compose import load
from trainer.config.fields import ConfigError
from trainer.config.sections import Config
from trainer.envs import DiscreteAction, EnvSpec, Leaf
from trainer.learning.normalization import Moments, Normalization
from trainer.networks.encoders import Flatten, encoders_of
from trainer.replay.buffer import Transitions
from trainer.replay.streams import StreamLayout
from trainer.roles.greedy import Players
from trainer.run_folder import checkpoint
from trainer.training.train import train

BOTH = {"normalize_observations": True, "normalize_rewards": True}
VECTOR, IMAGE = Leaf("observation.x", (2,), "float32", "vector"), Leaf("observation.y", (4, 4), "uint8", "image", "hw")
SPEC = EnvSpec("Test-v0", (VECTOR, IMAGE), DiscreteAction(2))


def test_moments_of_batches_are_those_of_all():
    moments = Moments(2)
    assert moments.scale.tolist() == [1, 1]
    for batch in ([[1, 10], [3, 10]], [[5, 10]], []):
        moments.add(np.array(batch, np.float32).reshape(-1, 2))
    assert moments.count == 3 and moments.mean.tolist() == [3, 10]
    assert moments.scale[0] == pytest.approx(1 / np.sqrt(8 / 3))  # (4 + 0 + 4) / 3
    assert moments.scale[1] == pytest.approx(1e4)  # 1 / sqrt(0 + 1e-8)
    rng, whole = np.random.default_rng(0), Moments(3)
    vectors = rng.normal(1e4, 3, (5_000, 3))
    for part in np.split(vectors, [7, 8, 900, 900, 4_000]):
        whole.add(part)
    assert whole.mean == pytest.approx(vectors.mean(0)) and whole.scale == pytest.approx(1 / vectors.std(0), rel=1e-6)


def columns_of(streams: StreamLayout) -> dict[str, np.ndarray]:
    rows = streams.rows
    return {
        "observation.x": np.zeros((rows, 2), np.float32), "observation.y": np.zeros((rows, 4, 4), np.uint8),
        "reward": np.zeros(rows, np.float32), "terminated": np.zeros(rows, bool), "truncated": np.zeros(rows, bool),
        "final": np.zeros(rows, bool),
    }  # fmt: skip


def normalization(streams: StreamLayout, columns: Any, cursor: np.ndarray, gamma: float = 0.99) -> Normalization:
    section = DQNConfig(gamma=gamma, **BOTH)
    return Normalization(section, Transitions(SPEC, columns, streams, cursor, gamma, 1), cursor)


def test_statistics_of_published_rows_by_hand():
    """Two streams; rewards are discounted by a half, episode by episode; the row after an end counts for nothing."""
    streams = StreamLayout(1, 2, 8)
    columns, cursor = columns_of(streams), np.zeros(2, np.int64)
    times = np.arange(4)
    first, second = streams.index(np.zeros(4, np.int64), times), streams.index(np.ones(4, np.int64), times)
    columns["observation.x"][first] = [[1, 0], [2, 0], [99, 99], [3, 0]]
    columns["observation.x"][second] = [[4, 0], [5, 0], [6, 0], [7, 0]]
    columns["reward"][first], columns["reward"][second] = [1, 2, 0, 4], [8, 0, 0, 0]
    columns["terminated"][first[1]], columns["final"][first[2]] = True, True
    statistics = normalization(streams, columns, cursor, gamma=0.5)
    assert not statistics.look()
    cursor[:] = 4
    assert statistics.look() and not statistics.look()
    assert set(statistics.observations) == {"observation.x"}  # images are left alone
    assert statistics.observations["observation.x"].mean.tolist() == [4, 0]  # of 1 .. 7
    # returns so far: 1, 2 + 1/2, then 4 in the next episode; 8, 4, 2, 1
    returns = [1, 2.5, 4, 8, 4, 2, 1]
    assert statistics.returns is not None and statistics.returns.count == 7
    assert 1 / statistics.returns.scale[0] == pytest.approx(np.std(returns))
    buffers = statistics.buffers()
    assert buffers["0", "running_mean"].tolist() == [4, 0]
    assert buffers["0", "running_scale"][0] == pytest.approx(1 / 2)  # the variance of 1 .. 7 is 4


def test_looking_often_or_through_a_checkpoint_gives_the_same():
    streams, rng = StreamLayout(2, 2, 16), np.random.default_rng(1)
    columns, cursor = columns_of(streams), np.zeros(4, np.int64)
    columns["observation.x"][:] = rng.normal(5, 2, (streams.rows, 2))
    columns["reward"][:] = rng.normal(0, 3, streams.rows)
    columns["truncated"][:] = rng.random(streams.rows) < 0.2
    often, once = (normalization(streams, columns, cursor) for _ in range(2))
    for time in (3, 4, 9, 15):
        cursor[:] = time
        often.look()
        copy = normalization(streams, columns, cursor)
        copy.load_state_dict(often.state_dict())
        often = copy
    once.look()
    for key, value in once.buffers().items():
        assert torch.allclose(often.buffers()[key], value, rtol=1e-5)


@pytest.mark.parametrize("n_step", [1, 3])
def test_sampled_transitions_are_normalised_and_rows_are_not(n_step: int):
    streams = StreamLayout(1, 1, 8)
    columns, cursor = columns_of(streams), np.array([8])
    columns["action"] = np.zeros(8, np.int64)
    columns["observation.x"][:, 0], columns["reward"][:] = np.arange(8), [6, 2, 4, 0, 0, 0, 0, 0]
    transitions = Transitions(SPEC, columns, streams, cursor, 0.5, n_step)
    plain = transitions.get(torch.tensor([0, 1]))
    assert plain["next", "reward"].ravel().tolist() == ([6, 2] if n_step == 1 else [6 + 1 + 1, 2 + 2])
    transitions.normalized = {"observation.x": (torch.tensor([1.0, 0]), torch.tensor([0.5, 1]))}
    transitions.reward_scale, transitions.reward_clip = 0.5, 2.0
    found = transitions.get(torch.tensor([0, 1]))
    assert found["observation.x"][:, 0].tolist() == [-0.5, 0]  # (0 - 1) / 2 and (1 - 1) / 2
    assert found["next", "observation.x"][:, 0].tolist() == [(n_step - 1) / 2, n_step / 2]
    assert found["observation.y"].dtype == torch.uint8
    # 6 is halved and cut off at 2, 2 and 4 are halved
    assert found["next", "reward"].ravel().tolist() == ([2, 1] if n_step == 1 else [2 + 0.5 + 0.5, 1 + 1])
    assert columns["observation.x"][:3, 0].tolist() == [0, 1, 2] and columns["reward"][0] == 6


def test_a_policy_that_is_begun_with_brings_its_statistics():
    streams = StreamLayout(1, 1, 8)
    columns, cursor = columns_of(streams), np.array([1])
    statistics = normalization(streams, columns, cursor)
    trees = [
        TensorDict({"encoders": {"0": {"running_mean": torch.tensor([5.0, 0]), "running_scale": torch.tensor([0.5, 1])},
                                 "return_scale": torch.tensor(0.25)}})
        for _ in range(2)
    ]  # fmt: skip
    statistics.take_out(trees, count=3)
    for tree in trees:  # those of an update
        assert tree["encoders", "0", "running_mean"].tolist() == [0, 0] and tree["encoders", "return_scale"] == 1
    again = statistics.published(trees[0])
    assert again["encoders", "0", "running_mean"].tolist() == [5, 0]
    assert again["encoders", "0", "running_scale"].tolist() == [0.5, 1] and again["encoders", "return_scale"] == 0.25
    columns["observation.x"][0] = [9, 0]
    statistics.look()
    assert statistics.observations["observation.x"].mean.tolist() == [6, 0]  # of three 5s and a 9
    statistics.take_out(trees, count=100)  # there are statistics, and they are newer
    assert statistics.observations["observation.x"].mean.tolist() == [6, 0]


def test_a_leaf_is_normalised_frame_by_frame_and_cut_off():
    leaf = Leaf("observation", (2,), "float32", "vector", stack=2)
    encoder = Flatten(leaf, scaled=False, clip=3.0)
    x = torch.tensor([[[1.0, 2.0], [3.0, 40.0]]])  # two frames of two numbers
    assert encoder(x).tolist() == [[1, 2, 3, 3]]  # mean 0, scale 1 until there are statistics
    encoder.running_mean.copy_(torch.tensor([1.0, 2.0]))
    encoder.running_scale.copy_(torch.tensor([0.5, 0.25]))
    assert encoder(x).tolist() == [[0, 0, 1, 3]]


def test_images_have_no_statistics():
    encoders, _ = encoders_of(SPEC, DQNConfig(**BOTH), True)
    assert [name for name, _ in encoders.named_buffers()] == ["return_scale", "0.running_mean", "0.running_scale"]
    with pytest.raises(ConfigError, match="normalises numbers, and Test-v0 shows none"):
        encoders_of(replace(SPEC, leaves=(IMAGE,)), DQNConfig(**BOTH), True)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["algorithm.scale_observations=true"], "scale the same numbers: set one of them to false"),
        (["schedule=shared_gradient"], "does not go with schedule=shared_gradient"),
        (
            ["algorithm.network=my_package:net"],
            "keeps its statistics in networks of ours, and algorithm.network=my_pac",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(words: list[str], sentence: str):
    with pytest.raises(ConfigError, match=sentence):
        load(["preset=cartpole", "algorithm.normalize_observations=true", *words], cores=2)


# ------------------------------------------------------------------ runs


def cartpole(small_config: Callable[..., Config], name: str, **sections: Any) -> Config:
    return small_config(
        name, seed=2, budget_frames=2_000, env={"id": "CartPole-v1", "backend": "gymnasium"},
        algorithm={**BOTH, "n_step": 3, "hidden_sizes": [16]}, **sections,
    )  # fmt: skip


def weights_of(config: Config) -> torch.Tensor:
    return checkpoint.load(Path(str(config.run_dir)) / "last" / "policy.safetensors")["weights"]


def test_sync_ends_with_the_bits_of_sequential_and_the_policy_has_the_statistics(small_config):
    configs = [cartpole(small_config, name, schedule={"name": name}) for name in ("sequential", "sync")]
    for config in configs:
        train(config, ["test"])
    assert torch.equal(*map(weights_of, configs))
    state = checkpoint.newest(Path(str(configs[0].run_dir)) / "checkpoints")
    assert state is not None
    kept = state["normalization"]["observations"]["observation"]
    assert kept["count"] == state["frames"] >= 2_000
    stored = sorted(Path(str(configs[0].run_dir)).rglob("observation*.bin"))
    assert stored  # the replay keeps what the environment showed: CartPole's angle is below 0.42
    players = Players([(configs[0], envs.describe(configs[0].env))])
    players.load(weights_of(configs[0]))
    (encoder, *_) = players.networks[0].encoders
    assert encoder.running_mean.tolist() == pytest.approx(kept["mean"].tolist(), rel=1e-5)
    scale = 1 / torch.sqrt(kept["squares"] / kept["count"] + 1e-8)
    assert encoder.running_scale.tolist() == pytest.approx(scale.tolist(), rel=1e-5)
    assert players.networks[0].encoders.return_scale < 1  # returns of CartPole differ by more than 1


def test_a_policy_in_python_and_one_for_onnx_see_what_the_learner_saw(small_config, tmp_path: Path):
    config = cartpole(small_config, "run", schedule={"name": "sequential"})
    train(config, ["test"])
    policy = trainer.load_policy(str(config.run_dir), which="last")
    seen = np.random.default_rng(3).normal(0, [1, 2, 0.1, 2], (64, 4)).astype(np.float32)
    players = Players([(config, envs.describe(config.env))])
    players.load(weights_of(config))
    with torch.inference_mode():
        expected = players.policy(0, [seen], None)([seen], None)[0]
    assert 0 < expected.sum() < 64
    assert policy(seen).tolist() == expected.tolist()
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    session = onnxruntime.InferenceSession(str(policy.export(tmp_path / "policy.onnx")))
    assert session.run(["action"], {"observation": seen})[0].tolist() == expected.tolist()


def test_networks_without_the_keys_have_no_statistics(small_config):
    config = small_config()
    spec = EnvSpec("Test-v0", (VECTOR,), DiscreteAction(2))
    assert not [name for name, _ in make_policy(config, spec).named_buffers() if "running" in name]


AGENTS = {"id": "CountingAgents", "backend": "counting_agents"}


def test_a_stack_ends_with_the_bits_of_agents_that_learn_one_by_one(small_config):
    flats = []
    for learner in ("stacked", "sequential"):
        config = small_config(
            learner, env=AGENTS, schedule={"name": "sequential"}, agents={"learner": learner},
            algorithm={**BOTH, "hidden_sizes": [16]},
        )  # fmt: skip
        train(config, ["test"])
        flats.append(weights_of(config))
    assert torch.equal(*flats)


def test_agents_with_a_process_each_publish_their_statistics(small_config):
    config = small_config(
        env=AGENTS, schedule={"name": "async"}, agents={"learner": "process"}, algorithm={**BOTH, "hidden_sizes": [16]}
    )
    assert train(config, ["test"])["status"] == "finished"
    for folder in sorted(Path(str(config.run_dir)).glob("agents/*/checkpoints")):
        state = checkpoint.newest(folder)
        assert state is not None and state["normalization"]["observations"]["observation"]["count"] > 500


def test_an_actor_and_its_critics_learn_from_normalised_transitions(small_config):
    config = small_config(
        env={"id": "Pendulum-v1", "backend": "gymnasium"}, schedule={"name": "sequential"}, budget_frames=600,
        algorithm={"name": "sac", **BOTH, "hidden_sizes": [16]},
    )  # fmt: skip
    train(config, ["test"])
    state = checkpoint.newest(Path(str(config.run_dir)) / "checkpoints")
    assert state is not None
    # Pendulum shows cos, sin and an angular velocity of up to 8, and pays down to -16
    squares = state["normalization"]["observations"]["observation"]["squares"]
    assert squares[2] > 2 * max(squares[:2])
    flat, spec = weights_of(config), envs.describe(config.env)
    players = Players([(config, spec)])
    players.load(flat)
    kept = state["normalization"]["observations"]["observation"]["mean"].tolist()
    assert players.networks[0].encoders[0].running_mean.tolist() == pytest.approx(kept, rel=1e-4, abs=1e-6)
