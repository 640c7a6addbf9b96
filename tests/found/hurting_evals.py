"""Environments of the tests of evaluations, of what is done at a run's end, and of the schedules of rounds."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from hurting import Plain


def role() -> str:
    """The name of this process; the main one's is MainProcess."""
    return multiprocessing.current_process().name


def log(**row: Any) -> None:
    """Append what happens, and in which process, to the file that EVALS_LOG names."""
    if path := os.environ.get("EVALS_LOG"):
        with open(path, "a") as file:
            file.write(json.dumps({"role": role(), "pid": os.getpid(), **row}) + "\n")


class Deterministic(Plain):
    """Fails where it shares a process with a learner whose operations need not be deterministic."""

    def step(self, action: int) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if role() in ("MainProcess", "local_0", "local_1"):
            assert torch.are_deterministic_algorithms_enabled(), "not deterministic"
        return super().step(action)


class Logged(Plain):
    """Says in which processes it lives; its actions are seeded by nothing, so that it can go on elsewhere."""

    def __init__(self) -> None:
        log(what="made")

    def reset(self, **more: Any) -> tuple[Any, dict[str, Any]]:
        log(what="reset")
        return super().reset(**more)

    def close(self) -> None:
        log(what="closed")


class Fails(Plain):
    """Does something `how` in its third step, or as it is made, in the processes called `where`."""

    def __init__(self, how: str, where: str, made: bool = False, once: str = "", after: int = 2) -> None:
        self.how, self.where, self.once, self.after, self.steps = how, where, once, after, 0
        if made:
            self.fail()

    def fail(self) -> None:
        if role() != self.where or (self.once and os.path.exists(self.once)):
            return
        if self.once:
            open(self.once, "w").close()
        if self.how == "exit":
            sys.exit(0)
        if self.how == "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.how == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if self.how == "hang":
            time.sleep(3_600)
        if self.how == "interrupt":
            raise KeyboardInterrupt("the simulator was interrupted")
        raise RuntimeError("the simulator lost its licence")

    def step(self, action: int) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.steps > self.after:
            self.fail()
        return super().step(action)


class OwnProblem(Plain):
    """Draws a problem in its constructor, as or-gymnasium does; every world pays something else."""

    def __init__(self) -> None:
        self.pays = float(np.random.default_rng().integers(0, 10**6))

    def step(self, action: int) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        seen, _, *rest = super().step(action)
        return seen, self.pays, *rest


class Endless(Plain):
    """No end and no time limit, and each step takes a while where it is asked for."""

    length = 10**9

    def __init__(self, slow_s: float = 0.0) -> None:
        self.slow_s = slow_s

    def step(self, action: int) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if role() == "final evaluation":
            time.sleep(self.slow_s)
        return super().step(action)


class SlowReset(Plain):
    """A reset takes half a second where it is evaluated."""

    def reset(self, **more: Any) -> tuple[Any, dict[str, Any]]:
        if role() in ("evaluator", "final evaluation"):
            time.sleep(0.5)
        return super().reset(**more)


class SlowEnd(Plain):
    """The first of its episodes ends after 3 steps, all others never, and steps of the final evaluation take 0.1 s."""

    length = 3

    def reset(self, **more: Any) -> tuple[Any, dict[str, Any]]:
        if role() == "final evaluation" and getattr(self, "t", 0):  # a reset alone, to look at it, is no episode
            self.length = 10**9
        return super().reset(**more)

    def step(self, action: int) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if role() == "final evaluation":
            time.sleep(0.1)
        return super().step(action)


log(what="imported")
for kind in (Deterministic, Logged, Fails, OwnProblem, Endless, SlowReset, SlowEnd):
    gym.register(f"Hurting/{kind.__name__}-v0", kind)
