"""What a run's folder tells in Python: configuration, summary, rows, replay, evaluation."""

from __future__ import annotations

import fcntl
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import trainer
from trainer.run_folder import checkpoint


def test_it_reads_the_folders_files(cards_run: Path) -> None:
    run = trainer.load(cards_run)
    assert run.config.env.id == "Cards-v0" and run.config.budget_frames == 800
    assert run.summary == json.loads((cards_run / "summary.json").read_text())
    assert run.metrics == [json.loads(line) for line in (cards_run / "metrics.jsonl").read_text().splitlines()]
    assert run.commands == ["trainer run env.id=Cards-v0"]
    assert repr(run).startswith(f"Run('{cards_run}': finished, ") and "mean return)" in repr(run)
    pandas = pytest.importorskip("pandas")
    assert pandas.DataFrame(run.metrics)["frames"].max() == run.summary["frames"]
    assert run.plot().axes


def test_a_run_that_goes_on_and_one_that_was_killed(cards_run: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(cards_run, tmp_path / "run"))
    (path / "summary.json").unlink()
    run = trainer.load(path)
    with open(path / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert run.is_running and run.summary == {"status": "running"}
    assert not run.is_running and run.summary == {"status": "killed"}


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(trainer.ConfigError, match="is no run's folder: it has no config.yaml"):
        trainer.load(tmp_path)


def test_its_replay_gives_the_learners_batches_and_writes_nothing(cards_run: Path) -> None:
    files = {path: path.read_bytes() for path in cards_run.rglob("*") if path.is_file()}
    run = trainer.load(cards_run)
    replay = run.replay(batch_size=64)
    batch = replay.sample()
    state = checkpoint.newest(cards_run / "checkpoints")
    assert state is not None
    assert len(replay) == sum(state["replay"]["upto"]) * 4  # four environments a worker, and no ring is full
    assert batch.batch_size == (64,)
    assert batch["observation.table.0"].shape == (64, 3, 4) and batch["observation.hand"].shape == (64, 1)
    assert batch["action_mask"].gather(1, batch["action"][:, None]).all()  # every action was legal
    frames, after = batch["observation.table.0"], batch["next", "observation.table.0"]
    running = ~batch["next", "done"].squeeze(-1).numpy()
    assert np.array_equal(frames[running, 1:], after[running, :-1])  # the stacks overlap
    hand, action = batch["observation.hand"].squeeze(-1), batch["action"]
    expected = frames[:, -1, 0] * (0.5 + 0.5 * (hand == action))
    assert np.allclose(batch["next", "reward"].squeeze(-1), expected)
    assert "priority_weight" in batch.keys()
    with pytest.raises(RuntimeError):
        replay.extend(batch)
    assert {path: path.read_bytes() for path in cards_run.rglob("*") if path.is_file()} == files


def test_a_replay_that_was_not_kept_and_an_agent_that_is_not_there(cards_run: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(cards_run, tmp_path / "run"))
    with pytest.raises(trainer.ConfigError, match="has no agent red: it has agent_0"):
        trainer.load(run).replay("red")
    path = checkpoint.numbered(run / "checkpoints")[-1]
    checkpoint.write_aside({**checkpoint.load(path), "replay": None}, path)
    with pytest.raises(trainer.ConfigError, match="was not kept: train with checkpoint.replay=true"):
        trainer.load(run).replay()
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(trainer.ReadError):
        trainer.load(run).replay()


def test_an_evaluation_leaves_the_process_as_it_was(cards_run: Path) -> None:
    import torch

    np.random.seed(3)
    torch.manual_seed(3)
    threads = torch.get_num_threads()
    expected = np.random.RandomState(3).random(2), torch.rand(2, generator=torch.Generator().manual_seed(3))
    run = trainer.load(cards_run)
    assert run.evaluate(2)["returns"] == run.evaluate(2)["returns"]
    assert np.array_equal(np.random.random(2), expected[0]) and torch.equal(torch.rand(2), expected[1])
    assert torch.get_num_threads() == threads
    with pytest.raises(trainer.ConfigError, match="must be at least 1"):
        run.evaluate(0)
