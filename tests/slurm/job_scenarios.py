"""Jobs on the tests' own SLURM cluster, and what is done to them; for `test_jobs.py`."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
STUB = Path(__file__).parent / "stub_trainer.py"
MARK = "TEST_SLURM_MARK"
WAIT_S = 300.0  # for anything, on a machine that is busy
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"}
CHECKPOINT = re.compile(r"frames_(\d{12})\.pt")
TRAINER_LOCK = threading.Lock()  # one job of real agents at a time: they need the cores
COUNTING = [
    "env.id=Counting", "env.backend=counting", "env.kwargs.step_seconds=0.01", "preset=generic",
    "algorithm.hidden_sizes=[16]", "collector.num_workers=1", "collector.envs_per_worker=4",
    "replay.capacity_frames=4000", "learner.device=cpu", "learner.batch_size=32", "learner.warmup_frames=100",
    "schedule.frames_per_update=8", "schedule.tolerance_frames=64", "evaluator.every_frames=0",
    "evaluator.final_episodes=2", "evaluator.num_envs=2", "logger.every_seconds=0.1", "logger.terminal=plain",
]  # fmt: skip


@dataclass
class Place:
    """Where a scenario's jobs run, what they are given, and what was seen of them."""

    environment: dict[str, str]
    folder: Path
    scratch: Path
    name: str = "run"  # of the run's folder
    jobs: list[str] = field(default_factory=list)
    seen: dict[str, Any] = field(default_factory=dict)

    @property
    def run(self) -> Path:
        return self.folder / self.name

    def command(self, *words: str | Path) -> str:
        """Output of a command, which must succeed."""
        done = subprocess.run([*map(str, words)], cwd=ROOT, env=self.environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def submit(self, *options: str, script: str = "six_gpu.sh", arguments: tuple[str, ...] = ()) -> str:
        own = [f"run_dir={self.run}", f"replay.scratch_dir={self.scratch}", *arguments]
        output = f"--output={self.folder}/job_%j.out"
        words = self.command("sbatch", "--parsable", output, *options, ROOT / "slurm" / script, *own)
        self.jobs.append(words.strip())
        return self.jobs[-1]

    def show(self, job: str) -> dict[str, str]:
        """What scontrol says of a job or of one element of an array; it is asked so often that it dies now and then."""
        for _ in range(5):
            try:
                return dict(re.findall(r"(\w+)=(\S*)", self.command("scontrol", "-o", "show", "job", job)))
            except AssertionError as failed:
                error = failed
                time.sleep(1.0)
        raise error

    def end(self, job: str) -> dict[str, str]:
        """The same, once it has ended."""
        self.wait(lambda: self.show(job)["JobState"] in ENDED, f"job {job} ends")
        return self.show(job)

    def restarted(self, job: str, times: int = 1) -> None:
        def is_so() -> bool:
            found = self.show(job)
            return (found["JobState"], found["Restarts"]) == ("RUNNING", str(times))

        self.wait(is_so, f"job {job} runs again")

    def wait(self, condition: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, f"waited {WAIT_S:g} s until {what}\n{self.logs()}"
            time.sleep(0.1)

    def started(self, *ranks: int) -> None:
        """Wait until these agents run: the stub has said what it was given, or the trainer has made updates."""

        def is_so(rank: int) -> bool:
            folder = self.run / f"agent_{rank}"
            return (folder / "started.json").exists() or any(row.get("updates") for row in rows(folder))

        self.wait(lambda: all(is_so(rank) for rank in ranks), f"agents {ranks} run")

    def finish(self) -> None:
        """Let the stubs finish."""
        self.run.mkdir(exist_ok=True)
        (self.run / "finish").touch()

    def given(self, rank: int) -> dict[str, str]:
        """What a stub was given."""
        return json.loads((self.run / f"agent_{rank}" / "started.json").read_text())

    def summary(self, rank: int) -> dict[str, Any]:
        path = self.run / f"agent_{rank}" / "summary.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def log(self, rank: int) -> str:
        return (self.run / f"agent_{rank}.log").read_text()

    def out(self) -> str:
        """What the batch scripts printed."""
        return "".join(path.read_text() for path in sorted(self.folder.glob("job_*.out")))

    def logs(self) -> str:
        return self.out() + "".join(f"\n{path}:\n{path.read_text()}" for path in sorted(self.run.glob("*.log")))

    def checkpoints(self, rank: int) -> list[int]:
        """Frames of an agent's checkpoints."""
        found = (CHECKPOINT.fullmatch(path.name) for path in (self.run / f"agent_{rank}" / "checkpoints").glob("*"))
        return sorted(int(match[1]) for match in found if match)

    def processes(self) -> list[int]:
        """Living processes of the scenario's jobs, whoever their parents are."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                ours = f"{MARK}={self.environment[MARK]}\0".encode() in (path / "environ").read_bytes()
                if ours and (path / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                    found.append(int(path.name))
            except OSError:  # it ended meanwhile
                continue
        return found

    def shared(self) -> set[str]:
        """Files in /dev/shm that these processes have mapped."""
        found: set[str] = set()
        for pid in self.processes():
            try:
                found |= set(re.findall(r"/dev/shm/\S+", Path(f"/proc/{pid}/maps").read_text()))
            except OSError:
                continue
        return found

    def left(self) -> dict[str, list[Any]]:
        """What is there of jobs that have ended, beside their run folder."""
        self.wait(lambda: not self.processes(), "no process is left")
        return {
            "shared": [name for name in self.seen.get("shared", ()) if Path(name).exists()],
            "scratch": [str(path) for path in self.scratch.glob("*/*") if path.name != "lock"],
        }


def rows(folder: Path) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


# --- scenarios -------------------------------------------------------------------------------------------------------


def one_fails(place: Place) -> None:
    """Agent 2 cannot make its folder; on the node lies what a job left that was killed, and what a living one has."""
    place.run.mkdir()
    (place.run / "agent_2").touch()
    node = place.scratch / f"trainer_{place.command('id', '-un').strip()}"
    for name in ("777", "888_1"):
        (node / name / "agent_0").mkdir(parents=True)
        (node / f"{name}.lock").touch()
    (node / "777.lock").unlink()  # killed in its own removal
    (node / "666").mkdir()
    (node / "666.lock").touch()
    node.chmod(0o700)
    with open(node / "888_1.lock") as living:
        fcntl.flock(living, fcntl.LOCK_EX)
        job = place.submit(arguments=("seed=40", "env.id=CartPole-v1"))
        place.started(0, 1, 3, 4, 5)
        place.seen["scratch"] = sorted(path.name for path in node.iterdir())
        place.finish()
        place.seen["job"] = place.end(job)
    shutil.rmtree(node / "888_1")
    (node / "888_1.lock").unlink()


def time_is_up(place: Place) -> None:
    """USR1 as `--signal=B:USR1` delivers it, when one agent of six has finished."""
    finished = place.run / "agent_0"
    finished.mkdir(parents=True)
    (finished / "summary.json").write_text('{"status": "finished"}')
    job = place.submit()
    place.started(1, 2, 3, 4, 5)
    place.wait(lambda: "is finished" in place.log(0), "agent 0 has ended")
    place.command("scancel", "--signal=USR1", "--batch", job)
    place.restarted(job)
    place.seen["first"] = {rank: place.checkpoints(rank) for rank in range(6)}
    place.finish()
    place.seen["job"] = place.end(job)


def element_requeues_alone(place: Place) -> None:
    """The last element, in which SLURM_JOB_ID is the id of the whole array."""
    job = place.submit("--array=0-2", script="array.sh", arguments=("seed=7",))
    place.started(0, 1, 2)
    place.command("scancel", "--signal=USR1", "--batch", f"{job}_2")
    place.restarted(f"{job}_2")
    place.seen["states"] = [place.show(f"{job}_{element}")["JobState"] for element in range(3)]
    place.finish()
    place.seen["jobs"] = [place.end(f"{job}_{element}") for element in range(3)]


def cancelled_and_submitted_again(place: Place) -> None:
    job = place.submit()
    place.started(*range(6))
    place.seen["processes"] = len(place.processes())
    place.command("scancel", job)
    place.seen["job"] = place.end(job)
    place.seen["left"] = place.left()
    place.seen["first"] = {rank: place.checkpoints(rank) for rank in range(6)}
    place.finish()
    place.seen["again"] = place.end(place.submit())


def cancelled_while_saving(place: Place) -> None:
    """USR1, and scancel before the agents have saved: the user's word is the last."""
    place.environment["STUB_SAVE_SECONDS"] = "3"
    job = place.submit("--ntasks=2")
    place.started(0, 1)
    place.command("scancel", "--signal=USR1", "--batch", job)
    place.wait(lambda: "got USR1" in place.out(), "the script has USR1")
    place.command("scancel", job)
    place.seen["job"] = place.end(job)


def no_progress(place: Place) -> None:
    place.environment |= {"STUB_SAVES": "no", "MAX_IDLE_RESTARTS": "1"}
    job = place.submit("--ntasks=2")
    for restart in (0, 1):
        place.restarted(job, restart)
        place.started(0, 1)
        for rank in (0, 1):
            (place.run / f"agent_{rank}" / "started.json").unlink()
        place.command("scancel", "--signal=USR1", "--batch", job)
        place.wait(lambda seen=restart: place.out().count("got USR1") > seen, "the script has USR1")
    place.seen["job"] = place.end(job)


def no_progress_at_start(place: Place) -> None:
    """Restarts that SLURM makes by itself are counted too."""
    place.environment |= {"STUB_SAVES": "no", "MAX_IDLE_RESTARTS": "0"}
    job = place.submit("--ntasks=1")
    place.started(0)
    place.command("scontrol", "requeue", job)
    place.seen["job"] = place.end(job)


def requeue_refused(place: Place) -> None:
    job = place.submit("--ntasks=1", "--no-requeue")
    place.started(0)
    place.command("scancel", "--signal=USR1", "--batch", job)
    place.seen["job"] = place.end(job)


def pre_empted(place: Place) -> None:
    """A job of a higher partition takes the node: TERM to the agents, and nothing to the script for 20 s."""
    job = place.submit()
    place.started(*range(6))
    node = place.show(job)["NodeList"]
    place.command(
        "sbatch", "--partition=high", f"--nodelist={node}", "--exclusive", "--output=/dev/null", "--wrap=sleep 2"
    )
    place.restarted(job)
    place.finish()
    place.seen["job"] = place.end(job)


def node_fails(place: Place) -> None:
    """A node that is set down and works on: srun ends at once, while the agents still save.

    The job goes on on another node, which has the same scratch folder here.
    """
    place.environment["STUB_SAVE_SECONDS"] = "3"
    job = place.submit("--signal=B:USR1@120", "--exclusive")
    place.started(*range(6))
    node = place.show(job)["NodeList"]
    place.command("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    place.wait(lambda: place.show(job)["Restarts"] == "1", "the job is requeued")
    place.finish()
    place.seen["job"] = place.end(job)
    place.command("scontrol", "update", f"nodename={node}", "state=resume")


def time_limit(place: Place) -> None:
    """The real one, of a minute: SLURM signals half a minute before it, or earlier."""
    job = place.submit("--time=1", "--signal=B:USR1@30")
    place.restarted(job)
    place.finish()
    place.seen["job"] = place.end(job)


def sweep(place: Place) -> None:
    """In a folder whose name a shell, Hydra's grammar and srun's patterns would each read in their own way."""
    place.name = "try (2) lr=0.1 100%t"
    place.environment |= {"SBATCH_OUTPUT": f"{place.folder}/job_%j.out"}
    output = place.command(
        "bash", ROOT / "slurm" / "sweep.sh", f"--output={place.folder}/job_%j.out", f"run_dir={place.run}",
        f"replay.scratch_dir={place.scratch}", "preset=lunarlander", "learner.learning_rate=1e-3,5e-4", "seed=3,4",
    )  # fmt: skip
    job = output.split()[-1]
    place.finish()
    place.seen["jobs"] = [place.end(f"{job}_{element}") for element in range(4)]


def trainer_array(place: Place) -> None:
    arguments = ("logger=wandb", *COUNTING, "budget_frames=4000", "seed=5")
    job = place.submit("--array=0-1", script="array.sh", arguments=arguments)
    place.started(0, 1)
    place.command("scancel", "--signal=USR1", "--batch", f"{job}_1")
    place.restarted(f"{job}_1")
    place.seen["first"] = {1: place.checkpoints(1)}
    place.seen["rows"] = {1: len(rows(place.run / "agent_1"))}
    place.seen["jobs"] = [place.end(f"{job}_{element}") for element in range(2)]
    place.seen["left"] = place.left()


def trainer_six(place: Place) -> None:
    job = place.submit(arguments=(*COUNTING, "budget_frames=8000", "seed=5"))
    place.started(*range(6))
    place.command("scancel", "--signal=USR1", "--batch", job)
    place.restarted(job)
    place.seen["first"] = {rank: place.checkpoints(rank) for rank in range(6)}
    place.seen["rows"] = {rank: len(rows(place.run / f"agent_{rank}")) for rank in range(6)}
    place.seen["job"] = place.end(job)
    place.seen["left"] = place.left()


def trainer_cluster(place: Place) -> None:
    pytest.importorskip("ray")
    counting = [word for word in COUNTING if not word.startswith("collector.num_workers")]
    options = ("--nodes=3", "--cpus-per-task=2")  # a learner, and two nodes with a worker each
    job = place.submit(*options, script="cluster.sh", arguments=(*counting, "budget_frames=8000", "seed=5"))
    place.started(0)
    place.command("scancel", "--signal=USR1", "--batch", job)
    place.restarted(job)
    place.seen["first"] = {0: place.checkpoints(0)}
    place.seen["rows"] = {0: len(rows(place.run / "agent_0"))}
    place.seen["job"] = place.end(job)
    place.seen["left"] = place.left()


def trainer_one_fails(place: Place) -> None:
    place.name = "try (2) lr=0.1"
    place.run.mkdir()
    (place.run / "agent_2").touch()
    job = place.submit(arguments=(*COUNTING, "budget_frames=1000", "seed=5"))
    place.seen["job"] = place.end(job)
    place.seen["left"] = place.left()


def trainer_cancelled(place: Place) -> None:
    job = place.submit(arguments=(*COUNTING, "budget_frames=1000000"))
    place.started(*range(6))
    place.seen["shared"], place.seen["processes"] = place.shared(), len(place.processes())
    place.command("scancel", job)
    place.seen["job"] = place.end(job)
    place.seen["left"] = place.left()


SCENARIOS = [
    one_fails, time_is_up, element_requeues_alone, cancelled_and_submitted_again, cancelled_while_saving, no_progress,
    no_progress_at_start, requeue_refused, pre_empted, node_fails, time_limit, sweep, trainer_array, trainer_six,
    trainer_cluster, trainer_one_fails, trainer_cancelled,
]  # fmt: skip


def carried_out(scenario: Callable[[Place], None], slurm: dict[str, str], folder: Path) -> Place:
    """Play a scenario; nothing of it outlives the call."""
    scratch = Path(tempfile.mkdtemp(prefix="s"))  # sockets lie in it, whose paths must be short
    environment = {name: value for name, value in slurm.items() if not name.endswith("_NUM_THREADS")}
    environment |= {MARK: f"{os.getpid()}_{scenario.__name__}", "PYTHON": str(STUB), "STUB_PYTHON": sys.executable}
    environment |= {"WANDB_MODE": "offline"}
    place = Place(environment, folder, scratch)
    try:
        if scenario.__name__.startswith("trainer_"):
            environment["PYTHON"] = sys.executable
            with TRAINER_LOCK:
                scenario(place)
        else:
            scenario(place)
    finally:
        for job in place.jobs:
            subprocess.run(["scancel", job], env=environment, capture_output=True)
        place.wait(lambda: not place.processes(), "no process is left")
        shutil.rmtree(scratch)
    return place
