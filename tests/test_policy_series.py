"""`checkpoint.policy_every_frames`: a run's policies over time, for evaluation, play and opponents."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from trainer.api import sources
from trainer.commands import eval as evaluating
from trainer.config.run_files import RunFolder, run_of
from trainer.config.sections import Config
from trainer.run_folder import checkpoint
from trainer.training.train import train


def kept(folder: RunFolder) -> list[int]:
    return list(checkpoint.series(folder))


def test_policies_are_kept_through_a_stop_and_loaded_by_their_frames(
    small_config: Callable[..., Config], capsys: pytest.CaptureFixture[str]
):
    """Rounds of some 110 frames: multiples of 300 are crossed in the round that reaches them."""
    config = small_config(budget_frames=640, schedule={"name": "sequential"}, checkpoint={"policy_every_frames": 300})
    folder = RunFolder(Path(str(config.run_dir)))
    end = train(config, ["test"])["frames"]
    first, second = kept(folder)
    assert 300 <= first < 428 and 600 <= second < 728
    flat = {frames: checkpoint.load(folder.policy_after(frames))["weights"] for frames in (first, second)}
    assert second == end and torch.equal(flat[second], checkpoint.load(folder.last_policy)["weights"])
    assert not torch.equal(flat[first], flat[second])
    lines = (folder.path / "manifest.txt").read_text().split("\n")
    assert f"checkpoints/policies/frames_{first:012d}.safetensors" in lines

    train(replace(config, budget_frames=1_000, resume=config.run_dir), ["resume"])
    *before, third = kept(folder)
    assert before == [first, second] and 900 <= third < 1_128  # each multiple once, before or after the stop
    assert torch.equal(flat[second], checkpoint.load(folder.policy_after(second))["weights"])

    capsys.readouterr()
    assert evaluating.main([str(folder.path), "--policy", str(first), "--episodes", "2"]) == 0
    assert json.loads(capsys.readouterr().out)["policy"] == str(first)
    assert evaluating.main([str(folder.path), "--policy", "7", "--episodes", "2"]) == 2
    assert capsys.readouterr().err == (
        f"error: --policy 7 is no policy of {folder.path}: it has best, last, {first}, {second}, {third}\n"
    )
    for path in (folder.policy_after(first), folder.best_policy, folder.last_policy, folder.pool / "snapshot_1.pt"):
        assert run_of(path).path == folder.path


def test_without_the_key_no_policy_is_kept(small_config: Callable[..., Config]):
    config = small_config(budget_frames=400, schedule={"name": "sequential"})
    train(config, ["test"])
    assert not RunFolder(Path(str(config.run_dir))).policies.exists()


def test_a_run_of_an_older_version_goes_on_in_the_format_of_now(small_config: Callable[..., Config]):
    """It kept its last policy and its series as `.pt`, the former with what is of no single agent."""
    config = small_config(budget_frames=400, schedule={"name": "sequential"}, checkpoint={"policy_every_frames": 300})
    folder = RunFolder(Path(str(config.run_dir)))
    end = train(config, ["test"])["frames"]
    last, progress = checkpoint.load(folder.last_policy), checkpoint.load(folder.progress)
    checkpoint.write_aside({**last, **progress}, folder.older_last_policy)
    (first,) = kept(folder)
    older = folder.policies / f"frames_{first:012d}.pt"
    checkpoint.write_aside(checkpoint.load(folder.policy_after(first)), older)
    for path in (folder.last_policy, folder.progress, folder.policy_after(first)):
        path.unlink()
    assert sources.path_of(folder, str(first)) == older and sources.of_run(folder.path, str(first)).header
    assert torch.equal(sources.of_run(folder.path, "last").flat, last["weights"])

    train(replace(config, budget_frames=700, resume=config.run_dir), ["resume"])
    log = (folder.path / "log.txt").read_text()
    assert f"goes on after {end} frames" in log and "warning" not in log
    assert not folder.older_last_policy.exists() and folder.last_policy.exists() and folder.progress.exists()
    assert kept(folder)[0] == first and len(kept(folder)) == 2
