"""A run's replay as a Minari dataset, and a run that begins with one: row by row."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import gymnasium
import numpy as np
import pytest

from trainer.commands import export_dataset
from trainer.config.fields import ConfigError
from trainer.datasets.rows import Episode, episodes_of, rows_of
from trainer.envs import EnvSpec, Leaf
from trainer.envs.actions import DiscreteAction
from trainer.replay.buffer import Transitions
from trainer.replay.on_disk import ReplayCopy, open_copy
from trainer.replay.streams import StreamLayout, open_storage, row_spec
from trainer.run_folder import checkpoint

minari = pytest.importorskip("minari")
pytest.importorskip("h5py")

CARTPOLE = {
    "env": {"id": "CartPole-v1", "backend": "gymnasium"}, "schedule": {"name": "sequential"},
    "collector": {"num_workers": 2, "envs_per_worker": 2}, "replay": {"capacity_frames": 4_000},
}  # fmt: skip


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    """Minari's folder, of this file's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(tmp_path_factory.mktemp("datasets")))
        yield


@pytest.fixture(scope="module")
def run(make_config, tmp_path_factory, datasets):
    """A run of CartPole, and its replay as the dataset cartpole/replay-v0."""
    from trainer.training.train import train

    config = make_config(tmp_path_factory.mktemp("export") / "run", budget_frames=800, **CARTPOLE)
    train(config, ["test"])
    assert export_dataset.main([config.run_dir, "cartpole/replay-v0"]) == 0
    return config


def stored(config):
    """Layout, columns, first and last times of a run's replay, as they are on the disk."""
    from pathlib import Path

    from trainer import envs

    ((_, spec),) = envs.describe_world(config.env)
    run_dir = Path(config.run_dir)
    kept = checkpoint.newest(run_dir / "checkpoints")["replay"]
    return *open_copy(run_dir / "replay", kept, row_spec(spec)), spec


def test_every_step_of_the_replay_is_in_the_dataset(run):
    streams, columns, first, upto, _ = stored(run)
    dataset = minari.load_dataset("cartpole/replay-v0")
    assert dataset.observation_space.shape == (4,) and dataset.action_space == gymnasium.spaces.Discrete(2)
    rows = streams.index(*np.meshgrid(np.arange(4), np.arange(upto[0]), indexing="ij")).reshape(4, -1)
    steps = int((~columns["final"][rows[:, :-1]]).sum())
    assert dataset.total_steps == steps == sum(len(episode) for episode in dataset.iterate_episodes())
    found = [episode for episode in dataset.iterate_episodes()]
    first_stream = rows[0]
    end = int(np.flatnonzero(columns["final"][first_stream])[0])
    assert np.array_equal(found[0].observations, columns["observation"][first_stream[: end + 1]])
    assert found[0].actions.tolist() == columns["action"][first_stream[:end]].tolist()
    assert found[0].rewards.tolist() == [1.0] * end
    assert found[0].terminations.tolist() == [False] * (end - 1) + [True]
    for episode in found:
        ended = episode.terminations | episode.truncations
        assert ended[-1] and not ended[:-1].any()
        assert len(episode.observations) == len(episode.actions) + 1


def test_the_dataset_makes_its_environment_again(run):
    assert minari.load_dataset("cartpole/replay-v0").recover_environment().spec.id == "CartPole-v1"


def test_a_run_begins_with_the_rows_of_the_dataset(run, make_config, tmp_path):
    from trainer.training.train import train

    config = make_config(
        tmp_path / "again", seed=3, budget_frames=400, **{**CARTPOLE, "replay": {"start_from": "cartpole/replay-v0"}}
    )
    train(config, ["test"])
    streams, columns, first, upto, spec = stored(config)
    dataset = minari.load_dataset("cartpole/replay-v0")
    rows = dataset.total_steps + dataset.total_episodes
    share = rows // 4
    assert upto[0] >= share + 100 and first[0] == 0
    begun = [episode for episode in episodes_of(columns, streams, first, upto, spec)][0]
    theirs = next(dataset.iterate_episodes())
    assert np.array_equal(begun.observations["observation"], theirs.observations)
    assert begun.actions.tolist() == theirs.actions.tolist()
    seams = streams.index(np.arange(4), np.full(4, share - 1))
    assert columns["final"][seams].all()  # no transition leads from the dataset's rows to the run's
    assert "the replay begins with" in (tmp_path / "again" / "log.txt").read_text()
    resumed = replace(config, resume=config.run_dir, budget_frames=500)
    train(resumed, ["test"])
    assert (tmp_path / "again" / "log.txt").read_text().count("the replay begins with") == 1


def episode_of(begin, steps, terminated):
    """Observations and rewards count, so that every row can be told."""
    numbers = np.arange(begin, begin + steps + 1, dtype=np.float32)
    ends = np.arange(steps) == steps - 1
    return Episode(
        {"observation": numbers[:, None]}, np.zeros(steps, np.int64), numbers[:steps], ends & terminated,
        ends & (not terminated),
    )  # fmt: skip


def filled(tmp_path, episodes, streams, stack=1):
    spec = EnvSpec("numbers", (Leaf("observation", (1,), "float32", "vector", stack=stack),), DiscreteAction(2))
    storage, cursor = open_storage(spec, streams, tmp_path), np.zeros(streams.num_streams, np.int64)
    copy = ReplayCopy(tmp_path / "copy", storage, streams, cursor, stack - 1)
    copy.fill(rows_of(episodes, spec))
    return spec, copy.columns, cursor


def test_n_step_returns_end_with_the_episodes_of_a_dataset(tmp_path):
    streams = StreamLayout(1, 1, 20)
    episodes = [episode_of(0, 3, True), episode_of(10, 3, False), episode_of(20, 2, True)]
    spec, columns, cursor = filled(tmp_path, episodes, streams)
    assert cursor.tolist() == [11] and np.flatnonzero(columns["final"]).tolist() == [3, 7, 10]
    batch = Transitions(spec, columns, streams, cursor, 0.5, 2).get(np.array([0, 1, 2, 4, 6, 8]))
    assert batch["next", "reward"][:, 0].tolist() == [0.5, 2.0, 2.0, 15.5, 12.0, 30.5]
    assert batch["next", "observation"][:, 0].tolist() == [2.0, 3.0, 3.0, 12.0, 13.0, 22.0]
    assert batch["next", "terminated"][:, 0].tolist() == [False, True, True, False, False, True]
    assert batch["next", "truncated"][:, 0].tolist() == [False, False, False, False, True, False]


def test_frame_stacks_do_not_cross_episodes_nor_the_parts_of_streams(tmp_path):
    streams = StreamLayout(1, 2, 20)
    spec, columns, cursor = filled(tmp_path, [episode_of(0, 3, True), episode_of(10, 7, True)], streams, stack=3)
    assert cursor.tolist() == [6, 6]  # 12 rows: 0 1 2 3 | 10 11 ... 17, the second part begins with 12
    transitions = Transitions(spec, columns, streams, cursor, 0.9, 1)
    start = streams.index(np.array([0, 0, 0]), np.array([0, 2, 4]))
    stacks = transitions.get(start)["observation"][..., 0].tolist()
    assert stacks == [[0.0, 0.0, 0.0], [0.0, 1.0, 2.0], [10.0, 10.0, 10.0]]
    final = columns["final"][streams.index(np.ones(6, np.int64), np.arange(6))]
    assert final.tolist() == [True, True, False, False, False, True]  # 12 and 13 lack the frames before them
    assert transitions.get(streams.index(np.array([1]), np.array([2])))["observation"][0, :, 0].tolist() == [12, 13, 14]


def test_rows_come_back_as_the_same_episodes(tmp_path):
    episodes = [episode_of(0, 3, True), episode_of(10, 4, False)]
    streams = StreamLayout(1, 1, 20)
    spec, columns, cursor = filled(tmp_path, episodes, streams)
    again = list(episodes_of(columns, streams, np.zeros(1, np.int64), cursor, spec))
    for before, after in zip(episodes, again, strict=True):
        assert np.array_equal(before.observations["observation"], after.observations["observation"])
        for name in ("actions", "rewards", "terminated", "truncated"):
            assert np.array_equal(getattr(before, name), getattr(after, name)), name
    overwritten = list(episodes_of(columns, streams, np.ones(1, np.int64), cursor, spec))
    assert len(overwritten) == 1 and overwritten[0].rewards[0] == 10.0


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"env": {"id": "Acrobot-v1", "backend": "gymnasium"}}, "Acrobot-v1 has observation float32\\[6\\]"),
        ({"replay": {"start_from": "nothing/here-v0"}}, "replay.start_from=nothing/here-v0: there is no such dataset"),
        ({"replay": {"start_from": "cartpole/replay-v0", "initial_priority": "collector"},
          "algorithm": {"prioritized": True}}, "set replay.initial_priority=max"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_in_one_sentence(run, make_config, tmp_path, changes, sentence):
    from trainer.training.train import train

    sections = {**CARTPOLE, "replay": {"start_from": "cartpole/replay-v0"}, **changes}
    with pytest.raises(ConfigError, match=sentence):
        train(make_config(tmp_path / "run", **sections), ["test"])


def test_a_run_without_a_replay_is_refused(run, tmp_path, capsys):
    shutil.copytree(run.run_dir, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    assert export_dataset.main([str(tmp_path / "run"), "cartpole/other-v0"]) == 2
    assert "has no checkpoint with a replay" in capsys.readouterr().err
    assert export_dataset.main([run.run_dir, "cartpole/replay-v0"]) == 2  # never is a dataset replaced
    assert "cannot be written" in capsys.readouterr().err
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "finished"
