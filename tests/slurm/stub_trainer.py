#!/usr/bin/env python3
"""Keeps the trainer's contract with slurm/*.sh, starts at once and trains nothing: for tests of the scripts alone.

Called as `python -m trainer.run KEY=VALUE ...`, by PYTHON. It starts a run in run_dir, or resumes it, or says that it
is finished; SIGUSR1 and SIGTERM make it save, once, and end with 128 + signal. It finishes as soon as there is a file
`finish` beside run_dir. The environment may say STUB_SAVE_SECONDS, how long saving takes, or STUB_SAVES=no. Anything
but a run is left to the real Python, STUB_PYTHON.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

KEYS = ("CUDA_VISIBLE_DEVICES", "SLURM_CPUS_PER_TASK", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "TMPDIR")
FRAMES_PER_STEP = 100


def main() -> int:
    received: list[int] = []
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, lambda number, _: received.append(number))
    arguments = dict(argument.split("=", 1) for argument in sys.argv[3:])
    run_dir, scratch = Path(arguments["run_dir"]), Path(arguments["replay.scratch_dir"])
    summary = run_dir / "summary.json"
    if summary.exists() and json.loads(summary.read_text())["status"] == "finished":
        print(f"{run_dir} holds a run that is finished", flush=True)
        return 0
    try:
        (run_dir / "checkpoints").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        print(f"error: run_dir={run_dir} cannot be written ({error.strerror})", file=sys.stderr)
        return 2
    saved = sorted((run_dir / "checkpoints").glob("frames_*.pt"))
    frames = int(saved[-1].stem.partition("_")[2]) if saved else 0
    if saved:
        print(f"resumed at {frames} frames", flush=True)
    (run_dir / "started.json").write_text(json.dumps({**arguments, **{key: os.environ.get(key) for key in KEYS}}))
    scratch.mkdir(parents=True, exist_ok=True)
    (scratch / "replay").write_text("rows")
    worker = subprocess.Popen(["sleep", "1000"])
    while not received:
        time.sleep(0.05)
        frames += FRAMES_PER_STEP
        if (run_dir.parent / "finish").exists():
            break
    if received:
        time.sleep(float(os.environ.get("STUB_SAVE_SECONDS", "0")))
        if not ((scratch / "replay").exists() and Path(os.environ["TMPDIR"]).exists()):
            print("the scratch folder is gone", flush=True)
    if os.environ.get("STUB_SAVES") != "no":
        (run_dir / "checkpoints" / f"frames_{frames:012d}.pt").write_text("weights")
    summary.write_text(json.dumps({"status": "stopped" if received else "finished", "frames": frames}))
    worker.kill()
    worker.wait()
    return 128 + received[0] if received else 0


if __name__ == "__main__":
    if sys.argv[1:3] != ["-m", "trainer.run"]:
        os.execv(os.environ["STUB_PYTHON"], [os.environ["STUB_PYTHON"], *sys.argv[1:]])
    sys.exit(main())
