"""Checkpoints, policies and the replay's rows: no bit of them changes unseen, and none of another kind is taken."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from trainer import envs
from trainer.config.compose import load
from trainer.config.fields import ConfigError
from trainer.config.run_config import from_yaml
from trainer.config.sections import Config
from trainer.reading import ReadError
from trainer.replay.on_disk import ReplayCopy
from trainer.replay.streams import open_storage
from trainer.roles.agents import agent_config, streams_of
from trainer.run_folder import checkpoint
from trainer.training.train import train


@pytest.fixture(scope="module")
def trained(make_config, tmp_path_factory) -> Config:
    """A finished run of 1,200 frames whose replay keeps 800, and has gone round; whoever changes it makes a copy."""
    config = make_config(
        tmp_path_factory.mktemp("trained") / "run", budget_frames=1_200, schedule={"name": "sequential"},
        replay={"capacity_frames": 800}, evaluator={"every_frames": 500}, checkpoint={"save_every_seconds": 0.2},
    )  # fmt: skip
    train(config, ["test"])
    return config


@pytest.fixture
def again(trained, tmp_path) -> Path:
    """A copy of its folder."""
    return Path(shutil.copytree(str(trained.run_dir), tmp_path / "again"))


def files_of(folder: Path) -> list[Path]:
    return [folder / "best/policy.safetensors", folder / "last/policy.safetensors", folder / "checkpoints/run.pt",
            checkpoint.numbered(folder / "checkpoints")[-1], *folder.glob("checkpoints/collector_*.pt")]  # fmt: skip


def go_on(folder: Path, budget: int = 1_600) -> str:
    """Resume the run and give what its log says from then on."""
    before = len((folder / "log.txt").read_text())
    summary = train(load([f"resume={folder}", f"budget_frames={budget}"], cores=2).config, ["test"])
    assert summary["status"] == "finished" and summary["frames"] >= budget
    return (folder / "log.txt").read_text()[before:]


def test_no_single_bit_of_a_checkpoint_changes_unseen(again):
    rng = np.random.default_rng(0)
    for path in files_of(again):
        whole = path.read_bytes()
        places = {*range(len(whole) - 60, len(whole)), *range(8), *rng.integers(0, len(whole), 60).tolist()}
        for place in places:
            flipped = bytearray(whole)
            flipped[place] ^= 1 << int(rng.integers(8))
            path.write_bytes(flipped)
            with pytest.raises(ReadError, match=f"checkpoint {path} is torn"):
                checkpoint.load(path)
        path.write_bytes(whole)
        if path.suffix == ".safetensors":
            assert checkpoint.load(path)["format"] == 1
        else:
            assert checkpoint.load(path)["format"] == torch.load(path, weights_only=True)["format"] == 2


def test_no_single_bit_of_the_replays_rows_changes_unseen(again, tmp_path):
    config = from_yaml(again / "config.yaml")
    ((name, spec),) = envs.describe_world(config.env)
    streams = streams_of(agent_config(config, name))
    (tmp_path / "storage").mkdir()
    storage = open_storage(spec, streams, tmp_path / "storage")
    copy = ReplayCopy(again / "replay", storage, streams, np.zeros(streams.num_streams, np.int64))
    kept = checkpoint.newest(again / "checkpoints")["replay"]
    rows, _ = copy.load(kept)
    # A ring's oldest row may be under a collector's pen: it is left out, and its bits do not matter.
    assert (rows >= 0).sum() == streams.rows - streams.num_streams
    rng, folder = np.random.default_rng(0), again / "replay" / streams.folder
    for path in sorted(folder.glob("*.bin")):
        whole, width = path.read_bytes(), path.stat().st_size // (streams.num_workers * streams.ring)
        for _ in range(12):
            worker, step = rng.integers(streams.num_workers), rng.integers(streams.ring - 1)
            slot = (kept["upto"][worker] - 1 - step) % streams.ring  # one of those that are taken
            flipped = bytearray(whole)
            flipped[(worker * streams.ring + slot) * width + rng.integers(width)] ^= 1 << int(rng.integers(8))
            path.write_bytes(flipped)
            with pytest.raises(ValueError, match="is damaged: vector step"):
                copy.load(kept)
        path.write_bytes(whole)
    copy.load(kept)


def test_a_damaged_replay_is_said_and_learning_waits(again):
    path = next(again.glob("replay/*/observation.bin"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 16
    path.write_bytes(data)
    said = go_on(again)
    assert "the replay of agent_0 is gone (" in said and "is damaged: vector step" in said, said


def test_unknown_formats_are_refused_in_one_sentence(again):
    path = checkpoint.numbered(again / "checkpoints")[-1]
    for state_format in (99, 3, "2", None):
        torch.save({**checkpoint.load(path), "format": state_format}, again / "other.pt")
        with pytest.raises(ConfigError, match=f"has format {state_format}, and this trainer knows 1 and 2: use the"):
            checkpoint.load(again / "other.pt")
    shutil.copy(again / "other.pt", path)
    with pytest.raises(ConfigError, match="has format None"):
        go_on(again)
    assert path.exists()  # it is not taken for torn


def test_checkpoints_of_format_1_are_still_taken(again):
    for path in files_of(again):
        state = checkpoint.load(path)
        torch.save({**state, "format": 1}, path)
    state = checkpoint.load(checkpoint.numbered(again / "checkpoints")[-1])
    del state["replay"]["checksums"]
    torch.save({**state, "format": 1}, checkpoint.numbered(again / "checkpoints")[-1])
    next(again.glob("replay/*/checksums.bin")).unlink()
    said = go_on(again)
    assert "warning" not in said and f"goes on after {state['frames']} frames" in said, said
    kept = checkpoint.newest(again / "checkpoints")["replay"]
    assert kept["checksums"] and next(again.glob("replay/*/checksums.bin")).stat().st_size == 4 * 200


@pytest.mark.parametrize("when", ["resumed", "at the end"])
def test_a_torn_best_policy_costs_no_run(when, again, monkeypatch):
    path = again / "best/policy.safetensors"
    whole = path.read_bytes()
    if when == "resumed":
        path.write_bytes(whole[: len(whole) // 2])
    else:  # torn by the disk after the last evaluation
        from trainer.training.system import System

        closed = System.close
        monkeypatch.setattr(System, "close", lambda self: (closed(self), path.write_bytes(whole[:99]))[0])
    said = go_on(again)
    assert f"warning: checkpoint {path} is torn" in said and "it is now torn_policy.safetensors" in said, said
    assert checkpoint.load(path)["frames"] >= 1_600 or when == "resumed"
