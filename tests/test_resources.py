"""What a run takes against what is allowed: refused with the numbers, before anything starts."""

from __future__ import annotations

import shutil
import subprocess
from collections import namedtuple
from pathlib import Path

import pytest

from trainer.config.fields import ConfigError
from trainer.host import resources
from trainer.host.resources import MAIN_BYTES, MEBIBYTE, WORKER_BYTES, Needs, check_fits, memory_limit, size

GIBIBYTE = 2**30
SLURM = ("SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU", "SLURM_CPUS_ON_NODE", "SLURM_CPUS_PER_TASK")


@pytest.fixture(autouse=True)
def no_slurm(monkeypatch):
    for name in SLURM:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def machine(monkeypatch):
    """Sets what this machine has: free bytes by folder, and memory."""

    def make(memory: int = 64 * GIBIBYTE, disk: int = 500 * GIBIBYTE, shm: int = 8 * GIBIBYTE, cgroup=()) -> None:
        usage = namedtuple("usage", "total used free")
        free = {"/dev/shm": shm}
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(0, 0, free.get(str(path), disk)))
        monkeypatch.setattr(resources, "_available_memory", lambda: memory)
        monkeypatch.setattr(resources, "_cgroup_files", lambda: list(cgroup))

    return make


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (7_075_000_000, "6.6 GiB"),
        (1_572_864, "1.5 MiB"),
        (3 * 2**40, "3.0 TiB"),
    ],
)
def test_sizes_for_people(count, text):
    assert size(count) == text


def test_what_fits_is_told_with_its_numbers(machine, tmp_path):
    machine()
    text = check_fits(Needs(2 * GIBIBYTE, 16 * MEBIBYTE, workers=4), tmp_path, tmp_path)
    need = MAIN_BYTES + 4 * WORKER_BYTES + 16 * MEBIBYTE + 2 * GIBIBYTE
    assert "replay of 2.0 GiB" in text and str(tmp_path) in text
    assert size(need) in text and "64.0 GiB: available memory" in text and "490.0 GiB free" in text


@pytest.mark.parametrize(
    ("has", "asked", "sentence"),
    [
        ({"disk": 10 * GIBIBYTE}, 10 * GIBIBYTE, r"replay of 10\.0 GiB in .* does not fit: 9\.8 GiB are free there"),
        ({"shm": 8 * MEBIBYTE}, GIBIBYTE, r"shares 16\.0 MiB in /dev/shm, where 8\.0 MiB are free"),
        (
            {"memory": 8 * GIBIBYTE},
            8 * GIBIBYTE,
            r"needs up to 9\.\d GiB of memory \(2 workers, .*available memory of this machine allows 8\.0 GiB",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_the_numbers(machine, tmp_path, has, asked, sentence):
    machine(**has)
    with pytest.raises(ConfigError, match=sentence) as caught:
        check_fits(Needs(asked, 16 * MEBIBYTE, workers=2), tmp_path, tmp_path)
    assert "\n" not in str(caught.value)


def test_the_edge_of_the_memory_limit(machine, tmp_path):
    replay = GIBIBYTE
    need = MAIN_BYTES + WORKER_BYTES + replay
    machine(memory=need)
    check_fits(Needs(replay, 0, workers=1), tmp_path, tmp_path)
    machine(memory=need - 1)
    with pytest.raises(ConfigError, match="memory"):
        check_fits(Needs(replay, 0, workers=1), tmp_path, tmp_path)


def test_slurm_limits_are_honoured(machine, monkeypatch, tmp_path):
    machine()
    assert memory_limit() == (64 * GIBIBYTE, "available memory of this machine")
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "6000")
    assert memory_limit() == (6000 * MEBIBYTE, "SLURM_MEM_PER_NODE")
    with pytest.raises(ConfigError, match=r"the SLURM_MEM_PER_NODE allows 5\.9 GiB; lower replay\.capacity_frames"):
        check_fits(Needs(5 * GIBIBYTE, 0, workers=1), tmp_path, tmp_path)
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "0")  # the whole node
    assert memory_limit()[0] == 64 * GIBIBYTE
    monkeypatch.setenv("SLURM_MEM_PER_CPU", "2000")
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "8")
    assert memory_limit() == (16_000 * MEBIBYTE, "SLURM_MEM_PER_CPU")
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "2")  # one of four agents on the node
    assert memory_limit() == (4_000 * MEBIBYTE, "SLURM_MEM_PER_CPU")


def test_the_lowest_cgroup_limit_counts(machine, tmp_path):
    files = []
    for name, text in (("outer", "3221225472\n"), ("inner", "5368709120\n"), ("none", "max\n"), ("v1", str(2**63))):
        files.append(tmp_path / name)
        files[-1].write_text(text)
    machine(cgroup=files)
    assert memory_limit() == (3 * GIBIBYTE, f"cgroup limit {files[0]}")


def test_the_limit_of_this_machine_is_a_plausible_number():
    limit, who = memory_limit()
    total = int(Path("/proc/meminfo").read_text().split("MemTotal:")[1].split()[0]) * 1024
    assert 0 < limit <= total and who


def test_a_real_disk_that_is_too_small(tmp_path):
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no right to mount a tmpfs: {mounted.stderr.decode().strip()}")
    try:
        with pytest.raises(ConfigError, match=r"a replay of 2\.0 MiB in .* does not fit: 1003\.5 KiB are free there"):
            check_fits(Needs(2 * MEBIBYTE, 0, workers=1), tmp_path, tmp_path)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
