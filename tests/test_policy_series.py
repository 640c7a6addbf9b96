"""`checkpoint.policy_every_frames`: a run's policies over time, for evaluation, play and opponents."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from trainer.commands import eval as evaluating
from trainer.config.run_files import RunFolder, run_of
from trainer.config.sections import Config
from trainer.run_folder import checkpoint
from trainer.training.train import train


def kept(folder: RunFolder) -> list[int]:
    return [int(path.stem.removeprefix("frames_")) for path in checkpoint.numbered(folder.policies)]


def test_policies_are_kept_through_a_stop_and_loaded_by_their_frames(
    small_config: Callable[..., Config], capsys: pytest.CaptureFixture[str]
):
    """Rounds of 128 frames: the multiples of 300 are crossed at 384, 640 and 1,024."""
    config = small_config(
        budget_frames=640, schedule={"name": "sequential"}, checkpoint={"policy_every_frames": 300},
    )  # fmt: skip
    folder = RunFolder(Path(str(config.run_dir)))
    train(config, ["test"])
    assert kept(folder) == [384, 640]
    flat = {frames: checkpoint.load(folder.policy_after(frames))["weights"] for frames in kept(folder)}
    assert torch.equal(flat[640], checkpoint.load(folder.last_policy)["weights"])
    assert not torch.equal(flat[384], flat[640])
    lines = (folder.path / "manifest.txt").read_text().split("\n")
    assert "checkpoints/policies/frames_000000000384.pt" in lines

    train(replace(config, budget_frames=1_024, resume=config.run_dir), ["resume"])
    assert kept(folder) == [384, 640, 1_024]  # each multiple once, before or after the stop
    assert torch.equal(flat[640], checkpoint.load(folder.policy_after(640))["weights"])

    capsys.readouterr()
    assert evaluating.main([str(folder.path), "--policy", "384", "--episodes", "2"]) == 0
    assert json.loads(capsys.readouterr().out)["policy"] == "384"
    assert evaluating.main([str(folder.path), "--policy", "385", "--episodes", "2"]) == 2
    assert capsys.readouterr().err == (
        f"error: --policy 385 is no policy of {folder.path}: it has best, last, 384, 640, 1024\n"
    )
    for path in (folder.policy_after(384), folder.best_policy, folder.last_policy, folder.pool / "snapshot_1.pt"):
        assert run_of(path).path == folder.path


def test_without_the_key_no_policy_is_kept(small_config: Callable[..., Config]):
    config = small_config(budget_frames=400, schedule={"name": "sequential"})
    train(config, ["test"])
    assert not RunFolder(Path(str(config.run_dir))).policies.exists()
