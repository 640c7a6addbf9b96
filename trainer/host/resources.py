"""What a run will take of disk and memory, against what this machine, cgroup and SLURM job allow."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch

from trainer.config.machine import cores_of_job
from trainer.config.sections import ConfigError
from trainer.run_folder import manifest

MEBIBYTE = 2**20
WORKER_BYTES = 150 * MEBIBYTE  # a collector beside what it shares with the fork server: 73 MB (PSS) with CartPole
MAIN_BYTES = 1024 * MEBIBYTE  # main process and evaluator
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3  # glibc's malloc.h
RESERVE = 0.02  # share of a disk that stays free


def memory_limit() -> tuple[int, str]:
    """Bytes of memory that this process and its children may use, and who says so."""
    limits = [(_available_memory(), "available memory of this machine")]
    for path in _cgroup_files():
        text = path.read_text().strip()
        if text.isdigit() and int(text) < 2**60:  # cgroup v1 writes a huge number for no limit
            limits.append((int(text), f"cgroup limit {path}"))
    for name, factor in (
        ("SLURM_MEM_PER_NODE", 1),
        ("SLURM_MEM_PER_CPU", cores_of_job("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE") or 1),
    ):
        if 0 < len(text := os.environ.get(name, "")) < 16 and text.isascii() and text.isdecimal() and int(text) > 0:
            limits.append((int(text) * factor * MEBIBYTE, name))
    return min(limits)


@dataclass(frozen=True)
class Needs:
    """Bytes that a run takes, and its processes.

    Args:
        replay: of all rows, once the replay is full.
        shared: of what its processes share in /dev/shm.
        kept: of checkpoints, policies and the copy of the replay in the run's folder.
        workers: processes that play.
    """

    replay: int
    shared: int = 0
    kept: int = 0
    workers: int = 1


def check_fits(needs: Needs, scratch: Path, run_dir: Path) -> str:
    """A sentence saying what the run takes.

    Args:
        needs: of the run.
        scratch: folder of the replay's files, existing.
        run_dir: the run's folder, existing; what a run that goes on has kept there needs no room any more.

    Raises:
        ConfigError: it does not fit; the sentence has the numbers.
    """
    replay_bytes, shared_bytes, num_workers = needs.replay, needs.shared, needs.workers
    free = int(shutil.disk_usage(scratch).free * (1 - RESERVE))
    where = f"replay of {size(replay_bytes)} in {scratch}"
    if replay_bytes > free:
        raise ConfigError(
            f"a {where} does not fit: {size(free)} are free there; "
            "lower replay.capacity_frames or set replay.scratch_dir"
        )
    _check_kept(needs, scratch, run_dir)
    shm = shutil.disk_usage("/dev/shm").free
    if shared_bytes > shm:
        raise ConfigError(f"the run shares {size(shared_bytes)} in /dev/shm, where {size(shm)} are free; enlarge it")
    # A memory-mapped file is page cache and may be written out, but a replay that does not fit is read from the disk.
    need = MAIN_BYTES + num_workers * WORKER_BYTES + shared_bytes + replay_bytes
    limit, who = memory_limit()
    if need > limit:
        raise ConfigError(
            f"the run needs up to {size(need)} of memory ({num_workers} workers, {where}), "
            f"the {who} allows {size(limit)}; lower replay.capacity_frames or collector.num_workers"
        )
    return (
        f"{where} ({size(free)} free), up to {size(need)} of memory with {num_workers} workers ({size(limit)}: {who})"
    )


def _check_kept(needs: Needs, scratch: Path, run_dir: Path) -> None:
    """Whether what is kept for resuming finds room, beside the replay where both lie on one disk."""
    ours = [path for path in manifest.named(run_dir) if path.suffix in (".bin", ".pt") and path.exists()]
    there = sum(path.stat().st_blocks * 512 for path in ours)
    one_disk = os.stat(scratch).st_dev == os.stat(run_dir).st_dev
    need = max(0, needs.kept - there) + one_disk * needs.replay
    free = int(shutil.disk_usage(run_dir).free * (1 - RESERVE))
    if need > free:
        raise ConfigError(
            f"the run keeps up to {size(needs.kept)} for resuming in {run_dir}"
            f"{f' beside a replay of {size(needs.replay)}' if one_disk else ''}, where {size(free)} are free: make "
            "room, lower replay.capacity_frames or checkpoint.keep_last, or set checkpoint.replay=false"
        )


def size(count: int) -> str:
    """Bytes for people."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def _available_memory() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/meminfo has no MemAvailable")


def _cgroup_files() -> list[Path]:
    """The memory limit's file of each cgroup from ours to the root, of version 1 and 2."""
    root, files = Path("/sys/fs/cgroup"), []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        base, name = (root, "memory.max") if not controllers else (root / "memory", "memory.limit_in_bytes")
        folder = base / path.lstrip("/")
        for parent in (folder, *folder.parents):
            if (parent / name).is_file():
                files.append(parent / name)
            if parent == base:
                break
    return files


def allow_open_files() -> None:
    """As many open files as the system allows, for this process and its children.

    Each shared tensor is one in every process: 50 agents have more than the 1,024 that a shell gives by habit.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def prepare_process() -> None:
    """What every process that calculates does first."""
    _keep_freed_memory()
    # Adam's moments of a unit that sleeps shrink until they are denormal (below 1.2e-38), and stay there: 0.9 times the
    # smallest is rounded back to it. An Intel CPU takes some hundred cycles for each: with 80 % of the moments there,
    # after 850k frames of Rainbow on MinAtar's Freeway, an update took three times as long. Threads inherit this.
    torch.set_flush_denormal(True)


def _keep_freed_memory() -> None:
    """Tell the C library to keep freed blocks up to 32 MiB instead of giving them back to the kernel.

    An update of a convolutional network frees and takes tens of MiB; new pages cost it up to two fifths of its time on
    a virtual machine. Does nothing where the library is not glibc.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        for parameter, value in ((M_MMAP_THRESHOLD, 2**25), (M_TRIM_THRESHOLD, 2**31 - 1), (M_TOP_PAD, 2**26)):
            library.mallopt(parameter, value)
