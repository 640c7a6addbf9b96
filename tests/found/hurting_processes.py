"""Environments that draw from everyone's generators, start programs, wait, or end as nobody expects.

FOUND_LOG=FILE makes some of them append lines of JSON; `Chance` takes the file as an argument.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from hurting import Plain


def log(path: str = "", **row: Any) -> None:
    """One line, whole even where several processes write."""
    if path := path or os.environ.get("FOUND_LOG", ""):
        with open(path, "a") as file:
            file.write(json.dumps({"pid": os.getpid(), **row}) + "\n")


class Chance(Plain):
    """Draws from all three global generators, in its constructor, its resets and its steps."""

    observation_space = gym.spaces.Box(0, 1, (3,), np.float32)

    def __init__(self, log: str = "") -> None:
        self.log = log
        self.problem = self.draw()

    def draw(self) -> np.ndarray:
        drawn = np.array([np.random.rand(), random.random(), float(torch.rand(()))], np.float32)
        log(self.log, drawn=drawn.tolist())
        return drawn

    def observe(self) -> np.ndarray:
        return (self.draw() + self.problem) / 2


class ChanceReward(Plain):
    """Only what it pays is drawn, so that its episodes can be played again."""

    def step(self, action: int) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        seen, _, *rest = super().step(action)
        return seen, np.random.rand() + random.random() + float(torch.rand(())), *rest


WAYS = ("plain", "session", "shell", "fork", "spawn", "forkserver")


class Runs(Plain):
    """Runs a program, in one of the ways that simulators are started; close() ends it, and waits for that.

    The environments of a process take the ways in turn.
    """

    made = 0

    def __init__(self, ways: str = " ".join(WAYS), kill_at: int | None = None, once: str = "") -> None:
        self.kill_at, self.once, self.steps = kill_at, once, 0
        way = ways.split()[Runs.made % len(ways.split())]
        Runs.made += 1
        sleep = [sys.executable, "-c", "import time; time.sleep(900)"]
        if way in ("fork", "spawn", "forkserver"):
            self.child: Any = multiprocessing.get_context(way).Process(target=time.sleep, args=(900,), daemon=False)
            self.child.start()
        elif way == "shell":  # the program is the shell's child
            self.child = subprocess.Popen(["sh", "-c", "sleep 900 & wait"], start_new_session=True)
        else:
            self.child = subprocess.Popen(sleep, start_new_session=way == "session")
        log(opened=self.child.pid, way=way, role=multiprocessing.current_process().name, **signals_of(self.child.pid))

    def step(self, action: int) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.kill_at == self.steps and multiprocessing.current_process().name != "evaluator":
            if not os.path.exists(self.once):
                open(self.once, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)

    def close(self) -> None:
        if self.child is not None:
            self.child.terminate()
            self.child.wait() if hasattr(self.child, "wait") else self.child.join()
            log(closed=self.child.pid)
            self.child = None


def signals_of(pid: int) -> dict[str, str]:
    """Ignored and blocked signals of a process that has executed its program, as masks."""
    time.sleep(0.2)
    status = dict(line.split(":", 1) for line in open(f"/proc/{pid}/status").read().splitlines() if ":" in line)
    return {"ignored": status["SigIgn"].strip(), "blocked": status["SigBlk"].strip()}


class Panic(BaseException):
    """As PyO3's PanicException: no `Exception`."""


class Mute(Exception):
    """One that cannot be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


WORDS = ["the level \ud800 is gone", "thread panicked at core.rs", "it lost its licence", "window closed", ""]
ENDS: list[BaseException] = [
    ValueError(WORDS[0]), Panic(WORDS[1]), SystemExit(WORDS[2]), KeyboardInterrupt(WORDS[3]), Mute(),
]  # fmt: skip


class Ends(Plain):
    """Prints, and ends its process in its 30th step, each process of a worker in another way; then all is well."""

    def __init__(self, folder: str) -> None:
        self.folder, self.steps = folder, 0

    def step(self, action: int) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.steps == 30 and multiprocessing.current_process().name.startswith("_Process"):
            print("the simulator says hello")
            number = len(os.listdir(self.folder))
            if number < len(ENDS):
                open(os.path.join(self.folder, str(number)), "w").close()
                raise ENDS[number]
        return super().step(action)


class SlowReset(Plain):
    """A reset takes 0.8 s; those of eight sub-environments fall into one vector step."""

    length = 30

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        time.sleep(0.8)
        return super().reset(**arguments)


class Slow(Plain):
    """A step takes a millisecond, so that a run lasts until it is told to end."""

    def step(self, action: int) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        time.sleep(0.001)
        return super().step(action)


class Defaults(Plain):
    """Sets torch's defaults, as simulators that compute with torch do."""

    def __init__(self) -> None:
        torch.set_default_dtype(torch.float64)


class Forks(Plain):
    """Forks in its 30th step, and the child comes back from it, or raises, as where a program is not found."""

    made = 0

    def __init__(self) -> None:
        Forks.made += 1
        self.steps, self.number = 0, Forks.made

    def step(self, action: int) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.steps == 30 and self.number <= 2 and os.fork() == 0 and self.number == 2:
            os.execv("/nowhere/simulator", ["simulator"])
        return super().step(action)


for kind in (Chance, ChanceReward, Runs, Ends, SlowReset, Slow, Defaults, Forks):
    gym.register(f"Found/{kind.__name__}-v0", kind)
