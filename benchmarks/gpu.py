"""CartPole and Pong on a CUDA device for some minutes: rates, the device's idle time, the copies' share.

    python -m benchmarks.gpu [--json FILE] [--minutes 2]

Whole training runs by the trainer's loop. Idle time is the time in which neither a kernel nor a copy ran, measured by
the profiler in some further seconds of that loop; `nvidia-smi` samples the utilisation during the run. Without a
CUDA device one sentence says so.
"""

from __future__ import annotations

import statistics
import subprocess
import threading
import time
from typing import TYPE_CHECKING

from benchmarks.report import Row, parser, show

if TYPE_CHECKING:
    from trainer.training.system import System

PROFILED_S = 5.0
CASES = {
    "CartPole-v1": ("preset=cartpole",),
    "ALE/Pong-v5": ("preset=pong", "learner.warmup_frames=5_000"),
}


def utilisation(device_index: int) -> float | None:
    """Per cent of the last moment in which a kernel ran, by nvidia-smi; None if nvidia-smi does not say."""
    command = ["nvidia-smi", f"--id={device_index}", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
    try:
        return float(subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def device_shares(system: System, seconds: float) -> dict[str, float]:
    """Shares of wall time in which kernels and copies ran on the device, over some seconds of the training loop."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    loop = system.config.schedule.kind.turns(system)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        start = time.perf_counter()
        while time.perf_counter() - start < seconds:
            next(loop)
        torch.cuda.synchronize()
        wall_us = 1e6 * (time.perf_counter() - start)
    busy = {"copy": 0.0, "kernel": 0.0}
    for event in profiled.key_averages():
        busy["copy" if "memcpy" in event.key.lower() else "kernel"] += event.self_device_time_total
    return {what: time_us / wall_us for what, time_us in busy.items()}


def measure(name: str, minutes: float) -> list[Row]:
    """The rows of one of `CASES`."""
    from benchmarks import parts

    config = parts.config(*CASES[name], "learner.device=cuda", parts.BUDGET, "evaluator.every_frames=1_000_000")
    used: list[float] = []
    with parts.opened(config) as system:
        over = threading.Event()

        def watch() -> None:
            for _ in range(max(1, round(60 * minutes))):
                if over.wait(1.0):
                    return
                if (per_cent := utilisation(system.device.index or 0)) is not None:
                    used.append(per_cent)
            parts.enough(system)

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            trained = parts.train(system)
        finally:
            over.set()
            watcher.join()
        shares = device_shares(system, min(PROFILED_S, 30 * minutes))
    idle = 1 - sum(shares.values())
    detail = f"{trained.frames:,} frames, {trained.updates:,} updates in {trained.wall_s:.0f} s"
    smi = f"nvidia-smi says {100 - statistics.fmean(used):.0f} %" if used else "nvidia-smi says nothing"
    return [
        Row(f"gpu, {name}, frames", trained.frames / trained.wall_s, "frames/s", detail=detail),
        Row(f"gpu, {name}, updates", trained.updates / trained.wall_s, "updates/s"),
        Row(f"gpu, {name}, device idle", 100 * idle, "%", detail=smi),
        Row(f"gpu, {name}, copies", 100 * shares["copy"], "%", detail="of wall time, on the device"),
    ]


def main() -> None:
    arguments = parser("CartPole and Pong on a CUDA device.")
    arguments.add_argument("--minutes", type=float, default=2.0, help="of each of the two")
    args = arguments.parse_args()
    import torch

    if not torch.cuda.is_available():
        print("There is no CUDA device here, so nothing was measured: run this on a machine with one.")
        return
    from benchmarks.machine import Meter

    meter, rows = Meter(), []
    for name in CASES:
        rows += measure(name, args.minutes)
    show(f"Training on {torch.cuda.get_device_name()}", rows, args.json, meter.stop().note())


if __name__ == "__main__":
    main()
