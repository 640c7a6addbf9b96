"""The process of a learner, with `agents.learner=process`; `trainer.training.learner_process` is its other side.

Runs in: a process for each agent, on `learner.device`.
Receives: rows of its replay, as its collectors publish them; commands through a pipe.
Sends: weights through its weights board; its frame limit and its number of updates through its board; metrics through
the pipe.
Waits for: nothing; if no update is due, the process sleeps.
Stops when: the control board has `STOP`; it raises (the error goes through the pipe); its parent dies.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from trainer.memory.boards import ControlBoard
from trainer.roles import child, pace
from trainer.roles.agents import AgentPlan, published, published_updates
from trainer.roles.learner import Learner
from trainer.run_folder import checkpoint
from trainer.telemetry.trace import open_trace, save_or_say

ROW_EVERY_S = 1.0  # time between two reports


def saved(save: Callable[[int], Path], frames: int) -> tuple[str, str]:
    """Save a checkpoint in a learner's process; returns the message to the main process.

    If the disk refuses, the process goes on, and the checkpoint before is still there.
    """
    try:
        return "saved", str(save(frames))
    except OSError as error:
        return "unsaved", str(error)


def go_on(agent: Learner) -> None:
    """Continue the agent of a process that has ended, or of a run that is resumed.

    The last checkpoint may be minutes old, or missing; the weights on the board are newer.
    """
    found, board = checkpoint.newest(agent.plan.folder), agent.board
    if found is not None:
        agent.load_state_dict(found, with_sampler=False)
    if agent.plan.weights.version and (made := published_updates(agent.plan)) >= agent.limiter.updates:
        agent.begin_with(published(agent.plan))
        agent.updater.updates = agent.limiter.updates = made
        board.updates[0] = made


def reporter(agent: Learner, pipe: Connection) -> Callable[[], None]:
    """`report()` gives a sign of life, and sends `("row", metrics)` when one is due."""
    reported = time.monotonic()

    def report() -> None:
        nonlocal reported
        now = agent.board.learner_heartbeat[0] = time.monotonic()
        if now - reported >= ROW_EVERY_S:
            reported = now
            pipe.send(("row", agent.metrics()))

    return report


def run(plan: AgentPlan, control: ControlBoard, device: str, pipe: Connection) -> None:
    """Body of a learner's process.

    It receives `("save", frames)` through the pipe, and sends `("row", metrics)`, `("saved", path)`, `("unsaved", why)`
    or `("error", text)`. It continues as `go_on` describes.
    """
    child.begin(plan.config, "learner", plan.number, num_threads=plan.config.learner.num_threads)
    trace = open_trace(plan.config, "learner", plan.name)
    try:
        with child.reporting(pipe):
            agent = Learner(plan, torch.device(device))
            agent.prepare()
            agent.follow(trace)
            sleep = trace.waiting(time.sleep, "idle", plan.name)
            go_on(agent)
            agent.publish()
            pace.open_limit(agent)
            report, number = reporter(agent, pipe), 0
            while not control.stopping():
                report()
                if pipe.poll():
                    _, number = pipe.recv()
                    pipe.send(saved(agent.save, number))
                if not pace.work(agent):
                    sleep(pace.IDLE_S)
                    plan.board.learner_waited_s[0] += pace.IDLE_S
            pipe.send(saved(agent.save, max(number, plan.board.total_frames())))  # the newest, whoever has more frames
    finally:
        save_or_say(trace)
