"""Section 3 and what section 2 says of SLURM's scripts; what needs a SLURM stands in tests/slurm/test_jobs.py.

The functions of slurm/lib.sh are called as a job calls them, in a shell of their own.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainer.config.compose import load

ROOT = Path(__file__).parents[2]


def shell(script: str, scratch: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `script` behind slurm/lib.sh, as job 5 with its scratch in `scratch`."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    environment |= {"PYTHON": sys.executable, "SCRATCH_ROOT": str(scratch), "SLURM_JOB_ID": "5", **variables}
    lines = f"set -u\nsource slurm/lib.sh\nRUN_DIR={shlex.quote(str(scratch))}/run SCRATCH_LOCK=0 WAIT_UNTIL=''\n"
    return subprocess.run(
        ["bash", "-c", f"{lines}name_job\nscratch_folder 5\n{script}"], cwd=ROOT, env=environment, capture_output=True,
        text=True, timeout=60,
    )  # fmt: skip


def of_user(scratch: Path) -> Path:
    return scratch / f"trainer_{subprocess.run(['id', '-un'], capture_output=True, text=True).stdout.strip()}"


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder with a short name, as sockets need it; pytest's own is too deep beside other workers."""
    with tempfile.TemporaryDirectory(prefix="s", dir="/tmp") as folder:
        yield Path(folder)


def test_3_a_link_in_place_of_the_users_scratch_is_refused(scratch: Path) -> None:
    """The sweep went through it and removed the user's folders that are called like jobs."""
    home = scratch / "home"
    (home / "777" / "agent_0").mkdir(parents=True)
    of_user(scratch).symlink_to(home)
    done = shell("make_scratch", scratch)
    assert done.returncode == 2 and "is not usable: set replay.scratch_dir" in done.stderr, done.stderr
    assert sorted(path.name for path in home.rglob("*")) == ["777", "agent_0"]


def test_3_scratch_that_everybody_may_rename_is_refused(scratch: Path) -> None:
    scratch.chmod(0o777)
    done = shell("make_scratch", scratch)
    assert done.returncode == 2 and "every user may rename files in" in done.stderr
    scratch.chmod(0o1777)  # as /tmp
    assert shell("make_scratch", scratch).returncode == 0


def test_3_only_folders_of_jobs_are_swept_and_nobody_else_may_look_in(scratch: Path) -> None:
    node = of_user(scratch)
    kept = ["data", "1234x", "99"]
    for name in (*kept, "777", "888_1"):
        (node / name / "agent_0").mkdir(parents=True)
    (node / "99" / "thesis.txt").write_text("mine")  # called like a job, but none of ours
    (node / "link").symlink_to(scratch)
    done = shell('make_scratch; stat -c %a "$SCRATCH" "$SCRATCH_ROOT"/trainer_*; umask', scratch)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-3:] == ["700", "700", f"{os.umask(os.umask(0o22)):04o}"]
    assert sorted(path.name for path in node.iterdir() if path.name != "lock") == sorted([*kept, "link"])
    assert (node / "99" / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize("content", ["a[$(touch hit)] 0", "0 a[$(touch hit)]", "x y", "1", "", "08 09"])
def test_3_what_a_file_holds_is_not_run(content: str, scratch: Path) -> None:
    (scratch / "restarts").write_text(content + "\n")
    done = shell(f"FRAMES=10; cd {scratch}; count_idle_restarts restarts; echo $IDLE", scratch, SLURM_RESTART_COUNT="1")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert not (scratch / "hit").exists() and not (ROOT / "hit").exists()
    assert (scratch / "restarts").read_text() == "10 0\n"  # 10 frames are more than there were


def test_3_variables_are_not_run_either(scratch: Path) -> None:
    done = shell("echo on", scratch, MAX_IDLE_RESTARTS="a[$(touch hit)]")
    assert done.returncode == 2 and "is no whole number" in done.stderr
    done = shell("OVERRIDES=() SEED=0 GRID=; agent_command 'a[$(touch hit)]'", scratch)
    assert done.returncode == 2 and not (ROOT / "hit").exists()


def test_2_scratch_is_kept_while_an_agent_holds_it(scratch: Path) -> None:
    """Where a node is set down srun returns before the tasks have ended; agent.sh holds the lock until its end."""
    agent = 'flock --shared "$SCRATCH.lock" sleep 3 & exec {SCRATCH_LOCK}>&-; SCRATCH_LOCK=0; sleep 1'
    running = f"make_scratch; job_field() {{ echo RUNNING; }}; {agent}; remove_scratch; date +%s; wait; date +%s"
    done = shell(running, scratch)
    before, after = map(int, done.stdout.splitlines()[-2:])
    assert before >= after - 1  # it was waited for
    assert [path.name for path in of_user(scratch).iterdir()] == ["lock"]
    given_up = (
        f"make_scratch; job_field() {{ echo NODE_FAIL; }}; {agent}; remove_scratch; ls -d $SCRATCH; wait; trap - EXIT"
    )
    done = shell(given_up, scratch)
    assert done.stdout.splitlines()[-1] == str(of_user(scratch) / "5")
    assert "the next job on this node removes it" in done.stdout
    done = shell("make_scratch; echo made", scratch)  # the same job, requeued to the same node
    assert done.stdout.splitlines()[-1] == "made" and "removing" in done.stdout


@pytest.mark.parametrize("folder", ["runs/try (2)", "runs/lr=0.1", "runs/it's $HOME; `x`", "-dash", "runs/100%"])
def test_2_folders_of_any_name_are_taken_by_dry_run_and_node(folder: str) -> None:
    """What the dry run prints is what a shell takes, and what the trainer's loader takes on the node."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    done = subprocess.run(
        ["bash", "slurm/six_gpu.sh", "--dry-run", "preset=cartpole", "seed=08", f"run_dir={folder}"], cwd=ROOT,
        env={**environment, "PYTHON": sys.executable}, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    line = next(line for line in done.stdout.splitlines() if line.startswith("agent 1: "))
    words = shlex.split(line.replace("<job id>", "7"))
    loaded = load(words[words.index("trainer.run") + 1 :], cores=4).config
    assert loaded.run_dir == str(ROOT / folder / "agent_1")
    assert loaded.seed == 9  # 08 is no octal number


def test_2_what_no_node_takes_is_refused_by_the_dry_run() -> None:
    for argument, words in (("run_dir=[x", "cannot be read"), ("run_dir=a\tb", "holds a tab")):
        done = subprocess.run(
            ["bash", "slurm/six_gpu.sh", "--dry-run", argument], cwd=ROOT, env={**os.environ, "PYTHON": sys.executable},
            capture_output=True, text=True, timeout=100,
        )  # fmt: skip
        assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1, done.stderr
