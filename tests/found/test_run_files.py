"""Files of the user's and of the run: what is deleted, where things go, and what is said when they are gone."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest

from trainer.config.fields import ConfigError
from trainer.config.sections import Config
from trainer.run_folder import folder as run_folder
from trainer.run_folder import manifest
from trainer.run_folder.scratch import scratch_folder

SLOW = ["env.id=Hurting/Slow-v0", "env.import_modules=[hurting_files]", "checkpoint.save_every_seconds=0.5"]


def files_in(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_folder_that_holds_no_run_is_refused_and_left_as_it_is(run, tmp_path):
    folder = tmp_path / "run"
    for name in ("replay/mine/a.txt", "checkpoints/frames_000000000001.pt", "deep/er/.x.partial", "scratch/lock"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    before = files_in(folder)
    ended = run("env.id=Hurting/Plain-v0")
    assert ended.code == 2 and "holds " in ended.err and "and no run: choose another folder" in ended.err, ended.said
    assert files_in(folder) == before


@pytest.mark.slow
def test_empty_folders_and_the_shells_own_output_are_no_hindrance(begin, tmp_path):
    folder = tmp_path / "run"
    (folder / "scratch" / "empty").mkdir(parents=True)
    with open(folder / "out.txt", "w") as out:
        code = begin("env.id=Hurting/Plain-v0", stdout=out).wait(timeout=120)
    assert code == 0, (folder / "out.txt").read_text()


def test_a_run_that_was_refused_as_it_started_leaves_its_folder_to_the_corrected_command(run):
    refused = run("env.id=Hurting/Plain-v0", "replay.capacity_frames=10_000_000_000")
    assert refused.code == 2 and "does not fit" in refused.err, refused.said
    assert (refused.run_dir / "config.yaml").exists() and refused.summary["status"] == "failed"
    assert run("env.id=Hurting/Plain-v0").summary["status"] == "finished"
    again = run("env.id=Hurting/Plain-v0")
    assert again.code == 2 and "holds a run already" in again.err, again.said


def test_a_run_that_goes_on_deletes_only_what_its_manifest_names(run, tmp_path):
    words = ["env.id=Hurting/Plain-v0", "checkpoint.keep_last=1"]
    assert run(*words).code == 0
    folder = tmp_path / "run"
    mine = ["replay/mine/a.txt", "checkpoints/frames_000000000001.pt", "checkpoints/frames_copy.pt",
            "deep/.x.partial", "best/.policy.pt.partial2", "trace/b.json", "scratch/trainer_mine/lock"]  # fmt: skip
    for name in mine:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    left = manifest.named(folder)
    ended = run(f"resume={folder}", "budget_frames=1200", "replay.capacity_frames=2000", "collector.envs_per_worker=2",
                quick=False)  # fmt: skip
    assert ended.code == 0, ended.said
    assert [name for name in mine if not (folder / name).is_file() or (folder / name).read_text() != name] == []
    old = [path for path in left if "replay/1x4x" in str(path) or "frames_" in path.name]
    assert old and not any(path.exists() for path in old)  # another layout, and a newer checkpoint
    assert ended.summary["frames"] >= 1200 and not list((folder / "replay" / "1x4x250").glob("*"))


def test_scratch_of_another_user_or_kind_is_left_alone_and_ours_is_private(tmp_path):
    base, victim = tmp_path / "scratch", tmp_path / "victim"
    victim.mkdir()
    (victim / "lock").write_text("theirs")
    base.mkdir()
    (base / "trainer_link").symlink_to(victim)
    for name in ("trainer_plain", "replay_host_1"):
        (base / name).mkdir()
        (base / name / "lock").write_text("mine")
    killed = base / "trainer_killed"
    killed.mkdir()
    manifest.begin(killed)
    manifest.add(killed / "lock", killed / "a.memmap", killed / "../escape")
    for name in ("lock", "a.memmap", "mine.txt"):
        (killed / name).write_text(name)
    (base / "escape").write_text("mine")
    with scratch_folder(base) as path:
        assert path.stat().st_mode & 0o077 == 0 and (path / "lock").stat().st_mode & 0o077 == 0
        (path / "mine.txt").write_text("mine")
    assert files_in(base) == {
        "escape": "mine", "replay_host_1/lock": "mine", "trainer_killed/mine.txt": "mine.txt",
        "trainer_plain/lock": "mine", f"{path.name}/mine.txt": "mine",
    }  # fmt: skip
    assert (victim / "lock").read_text() == "theirs"


@pytest.mark.slow
def test_an_environment_that_changes_the_working_folder_moves_nothing(run, tmp_path):
    start = tmp_path / "start"
    start.mkdir()
    words = ["env.id=Hurting/Wanders-v0", "env.import_modules=[hurting_files]", "evaluator.every_frames=200"]
    for name, more in (("async", []), ("sequential", ["schedule=sequential", "replay.scratch_dir=node"])):
        ended = run(*words, *more, f"run_dir=runs/{name}", cwd=start)
        assert ended.code == 0, ended.said
        folder = start / "runs" / name
        summary = json.loads((folder / "summary.json").read_text())
        assert summary["status"] == "finished" and summary["frames"] >= 600
        assert (folder / "best" / "policy.safetensors").is_file() and (folder / "curve.png").is_file()
        again = run(f"resume=runs/{name}", "budget_frames=2000", quick=False, cwd=start)
        assert again.code == 0 and json.loads((folder / "summary.json").read_text())["frames"] >= 2000, again.said
        played = run(f"runs/{name}", "--episodes", "2", module="trainer.eval", cwd=start)
        assert played.code == 0 and json.loads(played.out)["episodes"] == 2, played.said
    assert sorted(os.listdir(start)) == ["node", "runs"] and os.listdir(start / "node") == []


def once(condition, act):
    """Do something as soon as a condition holds, while the test's own thread runs."""

    def watch():
        while not condition():
            time.sleep(0.001)
        act()

    threading.Thread(target=watch, daemon=True).start()


@pytest.mark.parametrize("moved", [True, False])
def test_a_run_folder_that_is_moved_or_removed_is_noticed(moved, run, tmp_path):
    folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    strike = (lambda: folder.rename(elsewhere)) if moved else lambda: shutil.rmtree(folder, ignore_errors=True)
    once((folder / "checkpoints" / "run.pt").exists, strike)
    ended = run(*SLOW, "budget_frames=100000")
    assert ended.code == 1, ended.said
    words = f"was moved to {elsewhere} while" if moved else "was removed while the run went on"
    assert f"error: the run's folder {folder} {words}" in ended.said and "Traceback" not in ended.said
    assert moved == elsewhere.exists() and not (folder / "summary.json").exists()


def test_a_resumed_run_that_is_stopped_while_it_starts_keeps_its_summary(run, tmp_path):
    first = run("env.id=Hurting/Plain-v0")
    known, log = first.summary, tmp_path / "run" / "log.txt"
    once(lambda: "goes on after" in log.read_text(), lambda: os.kill(os.getpid(), signal.SIGTERM))
    stopped = run(f"resume={tmp_path / 'run'}", "budget_frames=100000", quick=False)
    assert stopped.code == 143, stopped.said
    after = first.summary
    assert after["status"] == "stopped" and after["frames"] >= known["frames"] >= 600
    assert after["updates"] >= known["updates"] >= 125 and after["wall_s"] >= known["wall_s"] > 0


def test_the_shells_rule_for_folders_holds_without_a_run(tmp_path, monkeypatch):
    (tmp_path / "notes.txt").write_text("mine")
    with (
        pytest.raises(ConfigError, match="holds notes.txt and no run"),
        run_folder.opened(Config(run_dir=str(tmp_path)), []),
    ):
        pass
    assert os.listdir(tmp_path) == ["notes.txt"]
