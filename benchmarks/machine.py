"""CPU time and memory of processes as the kernel counts them, and how busy other programs kept the CPU. Linux only."""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
MIB = 2**20
# Flags of /proc/cpuinfo that decide how fast networks run on a CPU, the best first.
INSTRUCTIONS = {"avx512_bf16": "AVX-512 with bfloat16", "avx512f": "AVX-512", "avx2": "AVX2"}
# Fields of /proc/PID/stat behind the program's name, counted from 0 (man 5 proc).
PARENT, CPU, START, RESIDENT = 1, slice(11, 15), 19, 21


@dataclass(frozen=True)
class Memory:
    """Resident memory of one or several processes.

    Args:
        rss_mb: MiB resident; memory shared by several processes counts in each.
        pss_mb: MiB resident; memory shared by k processes counts 1/k in each, so sums are right.
    """

    rss_mb: float
    pss_mb: float


def memory(pid: int) -> Memory:
    """The memory of one process; zero if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return Memory(0.0, 0.0)
    kib = {line.split()[0]: int(line.split()[1]) for line in lines[1:]}
    return Memory(kib.get("Rss:", 0) / 1024, kib.get("Pss:", 0) / 1024)


def stats() -> dict[int, list[str]]:
    """The fields of /proc/PID/stat of every process, from the state on."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            text = Path(f"/proc/{name}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        found[int(name)] = text.rpartition(")")[2].split()
    return found


def tree(root: int | None = None) -> dict[int, list[str]]:
    """The stat fields of `root` (None: this process) and all its descendants."""
    everyone, root = stats(), os.getpid() if root is None else root
    members = {root}
    while True:
        more = {pid for pid, fields in everyone.items() if int(fields[PARENT]) in members} - members
        if not more:
            return {pid: everyone[pid] for pid in sorted(members & everyone.keys())}
        members |= more


def cpu_s(processes: dict[int, list[str]]) -> float:
    """Seconds of CPU time of processes and of the children that they have waited for."""
    return sum(sum(map(int, fields[CPU])) for fields in processes.values()) / TICKS_PER_S


def machine_cpu_s() -> float:
    """Seconds of CPU time that all cores of the machine have spent, on any process."""
    with open("/proc/stat") as file:
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, file.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / TICKS_PER_S


def age_s() -> float:
    """Seconds since this process started."""
    start = int(stats()[os.getpid()][START]) / TICKS_PER_S
    return float(Path("/proc/uptime").read_text().split()[0]) - start


def loop_ns() -> float:
    """CPU nanoseconds of one turn of a fixed Python loop now, median of five: it shows how fast the CPU is now."""
    times = []
    for _ in range(5):
        start, total = time.process_time_ns(), 0
        for i in range(100_000):
            total += i & 7
        times.append((time.process_time_ns() - start) / 100_000)
    return sorted(times)[2]


class Meter:
    """Wall time, CPU time and memory of this process and its descendants, from its making to `stop`."""

    def __init__(self) -> None:
        self.startup_s = age_s()
        self.calib_ns = loop_ns()
        self.peak_rss_mb = 0.0
        self._stopped = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)
        self._sampler.start()
        self._cpu, self._machine, self._start = cpu_s(tree()), machine_cpu_s(), time.perf_counter()

    def _sample(self) -> None:
        while True:
            pages = sum(int(fields[RESIDENT]) for fields in tree().values())
            self.peak_rss_mb = max(self.peak_rss_mb, pages * os.sysconf("SC_PAGE_SIZE") / MIB)
            if self._stopped.wait(1.0):
                return

    def stop(self) -> Meter:
        """End the measurement; processes that ended before and were not waited for are missing from the CPU time."""
        self.wall_s = time.perf_counter() - self._start
        self.cpu_s = cpu_s(tree()) - self._cpu
        self.other_cores = max(0.0, machine_cpu_s() - self._machine - self.cpu_s) / self.wall_s
        self._stopped.set()
        self._sampler.join()
        self.calib_ns = (self.calib_ns + loop_ns()) / 2
        return self

    def note(self) -> str:
        """What a reader must know to trust a wall time."""
        return (
            f"{len(os.sched_getaffinity(0))} cores, of which other processes kept {self.other_cores:.2f} busy; "
            f"a fixed Python loop took {self.calib_ns:.0f} ns a turn"
        )


def peer_line(meter: Meter, env_steps: int, updates: int, wall_s: float, **more: Any) -> str:
    """One run as the JSON line that the drivers of peers print.

    Args:
        meter: stopped.
        env_steps: environment steps of the run.
        updates: optimiser steps of the run.
        wall_s: from the first environment step to the last.
        more: further entries; `peer`, `version`, `env`, `seed` and `threads` among them.
    """
    return json.dumps(
        {
            **more,
            "env_steps": env_steps,
            "updates": updates,
            "wall_s": round(wall_s, 3),
            "env_steps_per_s": round(env_steps / wall_s, 1),
            "updates_per_s": round(updates / wall_s, 1),
            "env_steps_per_cpu_s": round(env_steps / meter.cpu_s, 1),
            "cpu_s": round(meter.cpu_s, 2),
            "calib_ns": round(meter.calib_ns, 1),
            "peak_rss_mb": round(meter.peak_rss_mb),
            "startup_s": round(meter.startup_s, 2),
            "other_cores": round(meter.other_cores, 2),
        }
    )


def describe() -> str:
    """The machine and the date in words: cores, processor, memory, versions."""
    import datetime
    import os
    import platform

    import torch

    info = Path("/proc/cpuinfo").read_text()
    model = next((line.partition(":")[2].strip() for line in info.splitlines() if line.startswith("model name")), "CPU")
    vectors = next((words for flag, words in INSTRUCTIONS.items() if f" {flag}" in info), "no AVX2")
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return (
        f"{len(os.sched_getaffinity(0))} cores of {model} ({vectors}), {gib:.0f} GiB, {gpu}, "
        f"Python {platform.python_version()}, torch {torch.__version__}, {datetime.date.today()}"
    )
