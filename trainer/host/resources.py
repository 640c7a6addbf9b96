"""Check that a run fits into disk and memory, as this machine, its cgroup and its SLURM job allow."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from trainer.config.fields import ConfigError
from trainer.config.machine import cores_of_job
from trainer.run_folder import manifest

MEBIBYTE = 2**20
WORKER_BYTES = 150 * MEBIBYTE  # of a worker, without what it shares with the fork server: 73 MB (PSS) with CartPole
MAIN_BYTES = 1024 * MEBIBYTE  # of main process and evaluator
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3  # glibc's malloc.h
RESERVE = 0.02  # share of a disk that stays free


def memory_limit() -> tuple[int, str]:
    """Bytes of memory that this process and its children may use, and what sets this limit."""
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
    """Bytes that a run needs, and its number of workers.

    Args:
        replay: bytes of the full replay.
        shared: bytes that its processes share in /dev/shm.
        kept: bytes of checkpoints, policies and the copy of the replay in the run folder.
        workers: number of processes that play.
    """

    replay: int
    shared: int = 0
    kept: int = 0
    workers: int = 1


def check_fits(needs: Needs, scratch: Path, run_dir: Path) -> str:
    """Check that a run fits, and return a sentence about what it needs.

    Args:
        needs: of the run.
        scratch: folder of the replay's files; it exists.
        run_dir: the run folder; it exists. The files of a run that is resumed are replaced, so their bytes count as
            free.

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
    # The replay is a memory-mapped file: it may exceed memory, but then sampling reads from the disk.
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
    """Check the room for checkpoints, and for the replay too if it lies on the same disk."""
    suffixes = (".bin", ".pt", ".safetensors")
    ours = [path for path in manifest.named(run_dir) if path.suffix in suffixes and path.exists()]
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
    """Bytes in words, as 1.5 GiB."""
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
    """Files with the memory limits of this process's cgroup and of all above it, version 1 or 2."""
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
    """Raise the limit of open files to the most that the system allows, for this process and its children.

    Each shared tensor is an open file in every process: 50 agents need more than the usual limit of 1,024.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def prepare_process() -> None:
    """Set up memory and floating point; every process that computes calls it first. Threads inherit the settings."""
    _keep_freed_memory()
    # Adam's moments of an inactive unit shrink until they are denormal (below 1.2e-38) and stay there, as 0.9 times the
    # smallest number is rounded to itself. An Intel CPU takes hundreds of cycles for each: after 850k frames of Rainbow
    # on MinAtar's Freeway 80 % of the moments were denormal, and an update took three times as long.
    np.finfo(np.float32), np.finfo(np.float64)  # looked at before: NumPy below 2.3 warns once denormals are flushed
    torch.set_flush_denormal(True)


def _keep_freed_memory() -> None:
    """Let the C library hold freed blocks of up to 32 MiB instead of returning them to the kernel.

    An update of a convolutional network frees and allocates tens of MiB; on a virtual machine new pages took up to two
    fifths of its time. Does nothing where the library is not glibc.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        for parameter, value in ((M_MMAP_THRESHOLD, 2**25), (M_TRIM_THRESHOLD, 2**31 - 1), (M_TOP_PAD, 2**26)):
            library.mallopt(parameter, value)
