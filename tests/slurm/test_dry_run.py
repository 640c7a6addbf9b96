"""What the scripts would submit, and what they refuse to; needs no SLURM."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The script as a user calls it on a login node."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    return subprocess.run(
        ["bash", f"slurm/{script}", *arguments], cwd=ROOT, env={**environment, "PYTHON": sys.executable},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def commands(output: str) -> list[dict[str, str]]:
    """The overrides of each agent, from lines `agent N: PYTHON -m trainer.run KEY=VALUE ...`."""
    lines = [line for line in output.splitlines() if line.startswith("agent ")]
    assert [line.partition(":")[0] for line in lines] == [f"agent {number}" for number in range(len(lines))]
    assert all(f": {sys.executable} -m trainer.run " in line for line in lines)
    words = [line.replace("<job id>", "ID").split(" -m trainer.run ")[1].split() for line in lines]
    return [dict(word.split("=", 1) for word in line) for line in words]


@pytest.mark.parametrize(
    ("script", "job", "asked"),
    [
        ("six_gpu.sh", "ID", {"--ntasks=6", "--nodes=1"}),
        ("array.sh", "ID_<element>", {"--ntasks=1", "--nodes=1", "--array=0-5"}),
    ],
)
def test_six_commands_share_nothing(script: str, job: str, asked: set[str]) -> None:
    done = run(script, "--dry-run", "preset=lunarlander", "seed=10", "replay.scratch_dir=/scratch")
    assert (done.returncode, done.stderr) == (0, "")
    first, *rest = done.stdout.splitlines()
    assert first == f"sbatch slurm/{script} preset=lunarlander seed=10 replay.scratch_dir=/scratch"
    options = {line.strip() for line in rest if line.startswith("  --")}
    assert options >= asked | {
        "--cpus-per-task=8", "--gpus-per-task=1", "--signal=B:USR1@120", "--requeue", "--open-mode=append",
    }  # fmt: skip
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    assert commands(done.stdout) == [
        {
            "preset": "lunarlander",
            "seed": str(10 + rank),
            "logger.wandb_group": "slurm_ID",
            "run_dir": f"runs/slurm_ID/agent_{rank}",
            "replay.scratch_dir": f"/scratch/trainer_{user}/{job}/agent_{rank}",
            "resume": "auto",
        }
        for rank in range(6)
    ]


def test_a_search_shares_its_folder_and_its_seed(tmp_path: Path) -> None:
    arguments = ["--trials=9", "--pruner=asha", "preset=cartpole", "learner.batch_size=32,64", f"run_dir={tmp_path}"]
    done = run("array.sh", "--dry-run", "seed=3", "replay.scratch_dir=/scratch", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.partition(": ")[2] for line in done.stdout.splitlines() if line.startswith("agent ")]
    start = f"{sys.executable} -m trainer.tune --trials=9 --pruner=asha --folder={tmp_path} preset=cartpole "
    assert len(lines) == 6 and all(line.startswith(start + "learner.batch_size=32,64 seed=3 ") for line in lines)
    assert len({line.rpartition("replay.scratch_dir=")[2] for line in lines}) == 6


def test_sweep_takes_every_combination_and_no_seed_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    done = run(
        "sweep.sh", "--dry-run", "--time=2:00:00", "preset=lunarlander", "learner.learning_rate=1e-3,5e-4",
        "seed=0,1,2", f"run_dir={folder}", "algorithm.hidden_sizes=[16,16]",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == (
        f"sbatch --job-name=sweep --array=0-5 --time=2:00:00 slurm/array.sh --grid={folder}/sweep.txt "
        f"run_dir={folder} replay.scratch_dir=/tmp"
    )
    found = commands(done.stdout)
    assert {(line["learner.learning_rate"], line["seed"]) for line in found} == {
        (rate, seed) for rate in ("0.001", "0.0005") for seed in "012"
    }
    assert [line["run_dir"] for line in found] == [f"{folder}/agent_{number}" for number in range(6)]
    assert {line["algorithm.hidden_sizes"] for line in found} == {"[16,16]"}
    assert not folder.exists()
    (line,) = commands(run("sweep.sh", "--dry-run", "preset=lunarlander").stdout)
    assert "seed" not in line


@pytest.mark.parametrize(
    ("script", "arguments", "sentence"),
    [
        ("six_gpu.sh", [], "submit it with sbatch slurm/six_gpu.sh"),
        ("array.sh", [], "submit it with sbatch slurm/array.sh"),
        ("six_gpu.sh", ["--dry-run", "seed=1,2"], "seed=1,2 is no whole number"),
        ("array.sh", ["--dry-run", "learner.batch_size=32,64"], "use slurm/sweep.sh"),
        ("six_gpu.sh", ["--dry-run", "learner.batchsize=32"], "the nearest is learner.batch_size"),
        ("array.sh", ["--dry-run", "--trials=9", "preset=pong"], "preset=pong has no search space"),
        ("sweep.sh", ["--dry-run", "--trials=9", "seed=1"], "submit it with sbatch slurm/array.sh"),
        ("sweep.sh", ["--dry-run", "learner.batchsize=32,64"], "the nearest is learner.batch_size"),
        ("six_gpu.sh", ["--dry-run", "resume=runs/old"], "name that"),
        ("six_gpu.sh", ["--dry-run", "learner.device=cuda:3"], "cuda:0"),
        ("six_gpu.sh", ["--dry-run", "run_dir=runs/a,runs/b"], "name one"),
        ("array.sh", ["--time=3", "preset=pong"], "options of sbatch stand before the script"),
    ],
)
def test_refusal_is_one_sentence(script: str, arguments: list[str], sentence: str) -> None:
    done = run(script, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert sentence in done.stderr


def test_sweep_keeps_its_folder_to_itself(tmp_path: Path) -> None:
    (tmp_path / "sweep.txt").write_text("seed=0\nseed=1\n")
    done = run("sweep.sh", "--dry-run", "seed=0,1,2", f"run_dir={tmp_path}")
    assert done.returncode == 2
    assert f"{tmp_path} holds another sweep" in done.stderr
    assert run("sweep.sh", "--dry-run", "seed=0,1", f"run_dir={tmp_path}").returncode == 0


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_scripts_have_no_shellcheck_findings() -> None:
    scripts = [*ROOT.glob("slurm/*.sh"), *ROOT.glob("tests/slurm/*.sh")]
    assert len(scripts) >= 6
    done = subprocess.run(["shellcheck", "-x", *scripts], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == ""
