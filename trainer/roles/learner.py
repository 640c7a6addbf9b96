"""The learner of an agent: says when an update is due, draws its batches, publishes its weights.

Runs in: the main process (one agent, or `agents.learner=sequential` and `stacked`), or a process for each agent
(`process`), on `learner.device`.
Receives: rows from its own replay as its collectors publish them; in a process of its own, orders through a pipe.
Sends: weights through its own weights board; its frame limit and its count of updates onto its own board.
Waits for: nothing; where no update is due it says so, and its process sleeps.
Stops when: the control board says so; its own exception (sent through the pipe); the parent's death.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.algorithms import build
from trainer.host.errors import error_text
from trainer.learning.determinism import be_deterministic
from trainer.learning.feed import Batch, Feed, flat
from trainer.learning.limiter import NO_LIMIT, Limiter
from trainer.learning.stacking import Stack
from trainer.learning.update import Updater, flat_weights, linear
from trainer.memory.boards import VERSIONS_KEPT, ControlBoard
from trainer.replay.buffer import open_replay
from trainer.replay.on_disk import ReplayCopy
from trainer.replay.priorities import moved
from trainer.roles import child
from trainer.roles.agents import AgentPlan, published, published_updates
from trainer.run_folder import checkpoint
from trainer.telemetry.trace import NoTrace, Trace, all_of, open_trace, save_or_say

IDLE_S = 2e-4  # between two looks of a learner that has nothing due
SLACK = 8  # updates by which one agent of a stack may be ahead of another before it is updated alone
ROW_EVERY_S = 1.0  # between two reports of a learner's process


class Learner:
    """An agent's learning side: replay, learner and limiter, and the way of its weights.

    Args:
        plan: what it is built from.
        device: of the updates.
        frozen: it acts, but does not learn.
    """

    def __init__(self, plan: AgentPlan, device: torch.device, frozen: bool = False) -> None:
        config, spec = plan.config, plan.spec
        self.plan, self.name, self.config, self.board, self.frozen = plan, plan.name, config, plan.board, frozen
        be_deterministic(config.learner)
        torch.manual_seed(plan.seed)
        algorithm = build(config.algorithm, config.learner, spec)
        self.replay = open_replay(
            spec, plan.storage, plan.streams, plan.board.cursor, plan.board.oldest, config.algorithm, config.replay,
            config.learner.batch_size, plan.seed, device.type == "cuda", algorithm.first_priority,
        )  # fmt: skip
        self.sampler = self.replay.sampler
        self.feed = Feed(self.replay, device, config.learner.prefetch)
        self.updater = Updater(algorithm, config.learner, config.algorithm, device)
        assert config.schedule.tolerance_frames is not None  # a run's configuration is resolved
        self.limiter = Limiter(
            config.budget_frames, config.learner.warmup_frames, config.schedule.frames_per_update,
            config.schedule.tolerance_frames, config.schedule.episodes_per_update, plan.streams.num_streams,
        )  # fmt: skip
        self.copy = ReplayCopy(
            plan.folder.parent / "replay",
            plan.storage,
            plan.streams,
            plan.board.cursor,
            spec.stack - 1,
            plan.board.oldest,
        )
        self.copy.beat = self.beat

    @property
    def learners(self) -> list[Learner]:
        """Whose updates it makes: its own."""
        return [self]

    def prepare(self) -> None:
        """Record the update, which else the first one does; changes no weight."""
        self.updater.prepare(flat(self.replay.example()))

    def follow(self, trace: Trace | NoTrace) -> None:
        """Let a trace show what it does; one that shows nothing changes nothing."""
        self._follow_all_but_updates(trace)
        trace.follow(self.updater, "update", "update", self.name)

    def _follow_all_but_updates(self, trace: Trace | NoTrace) -> None:
        trace.follow(self.feed, "gather", "sample", self.name)
        for method, kind in (("publish", "publish"), ("metrics", "log"), ("save", "checkpoint")):
            trace.follow(self, method, kind, self.name)

    def beat(self) -> None:
        """A sign of life, where it has a process of its own."""
        self.board.learner_lives()

    def open_limit(self) -> None:
        """Let the collectors go as far as the limiter allows; a frozen agent holds nobody back."""
        board, frames = self.board, self.board.total_frames()
        board.frame_limit[0] = self.config.budget_frames if self.frozen else self.limiter.frame_limit()
        board.episode_limit[0] = NO_LIMIT if self.frozen else self.limiter.episode_limit(frames)

    def holds_collection_up(self, frames: int) -> bool:
        """Whether collectors wait for this agent after `frames` frames, or have ended."""
        board = self.board
        return frames >= board.frame_limit[0] or board.total_episodes() >= board.episode_limit[0]

    def due(self, frames: int) -> int:
        """Updates that may be made now, at most two chunks of batches: one to work on, one to gather meanwhile."""
        if self.frozen:
            return 0
        return int(min(self.limiter.due(frames, self.board.total_episodes()), 2 * self.config.learner.prefetch_batches))

    def work(self) -> bool:
        """One chunk of due updates; whether there was any."""
        frames = self.board.total_frames()
        due = self.due(frames)
        count = min(due, self.config.learner.prefetch_batches)
        if count:
            self.anneal(frames)
            self.learn([count], [due - count])
            self.open_limit()
        return count > 0

    def learn(self, counts: Sequence[int], then: Sequence[int] = (0,)) -> None:
        """`counts[0]` updates on batches that are gathered at once; `then[0]` more are known to come next."""
        for batch in self.feed.batches(counts[0], then[0]):
            self.updated(batch, self.updater.update(batch))

    def updated(self, batch: Batch, priority: Tensor) -> None:
        """Count an update, take its priorities, and hand the weights to the collectors when due."""
        self.replay.reprioritize(batch["stream"], batch["time"], priority)
        self.limiter.updates += 1
        self.board.updates[0] = self.limiter.updates
        if self.limiter.updates % self.config.learner.publish_every_updates == 0:
            self.publish()

    def publish(self) -> None:
        """Hand the collectors a new version of the weights, by TorchRL's scheme; waits for none of them."""
        self.plan.weights.send(self.updater.weights)
        self.board.version_updates[self.plan.weights.version % VERSIONS_KEPT] = self.limiter.updates

    def anneal(self, frames: int) -> None:
        """Learning rate and exponent of importance weights, as they are to be after `frames` frames."""
        fraction = frames / self.config.budget_frames
        rates, replay = self.config.learner, self.config.replay
        self.updater.set_learning_rate(linear(rates.learning_rate, rates.learning_rate_end, fraction))
        self.sampler.beta = linear(replay.priority_beta, replay.priority_beta_end, fraction)

    def metrics(self) -> dict[str, float]:
        """How learning goes, for the loggers; waits for the device.

        Raises:
            NotFinite: a loss was NaN or infinite.
        """
        metrics = {"learning_rate": self.updater.learning_rate, **self.updater.metrics()}
        if self.updater.last_batch is not None:
            self.feed.wait()
            metrics |= self.updater.algorithm.diagnose(self.updater.last_batch) | self.sampler.metrics()
        return metrics

    def flat(self) -> Tensor:
        """The weights of now, float32 [numel] on the CPU, in the boards' order."""
        return flat_weights(self.updater)

    def state_dict(self) -> dict[str, Any]:
        """Weights, target, optimiser, counters, priorities and random states."""
        self.feed.wait()
        self.replay.take_priorities()
        return {
            "learner": self.updater.state_dict(),
            "limiter": self.limiter.state_dict(),
            "sampler": self.sampler.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any], with_sampler: bool = True) -> None:
        """Go on from a checkpoint; without its sampler's part, priorities begin anew."""
        self.updater.load_state_dict(state["learner"])
        self.limiter.load_state_dict(state["limiter"])
        if self.board.lost_at[0] >= max(1, sum(state["frames_of_workers"])):  # not one that was saved after the loss
            self.limiter.begin_again(int(self.board.lost_at[0]), int(self.board.episodes_before[0]))
        self.board.updates[0] = self.limiter.updates
        if with_sampler:
            self.sampler.load_state_dict(state["sampler"])

    def load_replay(self, kept: dict[str, Any], sampler: dict[str, Any]) -> None:
        """Fill the replay as it was when `kept` and the sampler's state were saved.

        Raises:
            OSError, ValueError: the rows are gone.
        """
        rows, self.board.oldest[:] = self.copy.load(kept)
        self.sampler.load_state_dict(sampler if kept["streams"] == asdict(self.plan.streams) else moved(sampler, rows))

    def save(self, frames: int, **more: Any) -> Path:
        """A checkpoint after `frames` frames, replay included; written aside and renamed.

        Raises:
            OSError: the disk refuses.
        """
        state = {**self.state_dict(), "frames": frames, "seed": self.plan.seed, **more}
        state["frames_of_workers"], state["episodes_done"] = self.board.frames.tolist(), self.board.total_episodes()
        state["replay"] = self.copy.save() if self.config.checkpoint.replay else None
        path = checkpoint.save(self.plan.folder, state, frames, self.config.checkpoint.keep_last)
        if state["replay"] is not None:
            self.copy.forget_other_layouts()
        return path


class LearnerStack:
    """Learners of one shape whose due updates are made in one call; each has its own replay, limiter and optimiser.

    Args:
        learners: at least two, alike as `trainer.roles.agents.update_key` says.
    """

    def __init__(self, learners: list[Learner]) -> None:
        self.learners = learners
        self.stack = Stack([learner.updater for learner in learners])

    def prepare(self) -> None:
        """Record the update, which else the first one does; changes no weight."""
        self.stack.prepare(flat(self.learners[0].replay.example()))

    def follow(self, trace: Trace | NoTrace) -> None:
        """Let a trace show what it does; one that shows nothing changes nothing."""
        for learner in self.learners:
            learner._follow_all_but_updates(trace)
        trace.follow(self.stack, "update", "update", all_of([learner.name for learner in self.learners]))

    def work(self) -> bool:
        """One chunk of updates that are due for all of them, or for those that are owed more; whether there was any."""
        frames = [learner.board.total_frames() for learner in self.learners]
        due = [
            min(learner.due(so_far), learner.config.learner.prefetch_batches)
            for learner, so_far in zip(self.learners, frames, strict=True)
        ]
        common = min(
            (count for count, learner in zip(due, self.learners, strict=True) if not learner.frozen), default=0
        )
        if common:
            counts = [min(count, common) for count in due]
        else:  # agents that live longer have more frames; once they hold collection up, or ended it, all is made
            held = any(learner.holds_collection_up(n) for learner, n in zip(self.learners, frames, strict=True))
            counts = [count if count > (0 if held else SLACK) else 0 for count in due]
        if not any(counts):
            return False
        for learner, so_far in zip(self.learners, frames, strict=True):
            learner.anneal(so_far)
        self.learn(counts)
        for learner in self.learners:
            learner.open_limit()
        return True

    def learn(self, counts: Sequence[int], then: Sequence[int] | None = None) -> None:
        """`counts[a]` updates of agent a, on batches that each gathers by itself; `then[a]` more come next."""
        then = then or [0] * len(counts)
        fed = [
            learner.feed.batches(count, more) for learner, count, more in zip(self.learners, counts, then, strict=True)
        ]
        for _ in range(max(counts)):
            batches = [next(batches, None) for batches in fed]
            for learner, batch, priority in zip(self.learners, batches, self.stack.update(batches), strict=True):
                if batch is not None:
                    learner.updated(batch, priority)


def saved(save: Callable[[int], Path], frames: int) -> tuple[str, str]:
    """Make a checkpoint in a process of an agent's own; what to tell the main process of it.

    A disk that refuses costs the checkpoint, not the process: the one before is whole.
    """
    try:
        return "saved", str(save(frames))
    except OSError as error:
        return "unsaved", str(error)


def go_on(agent: Learner) -> None:
    """Take over from the process that had the agent before, or from the run that this one goes on with.

    Its last checkpoint may be minutes old, or not there yet; the weights on its board are those that it is played by.
    """
    found, board = checkpoint.newest(agent.plan.folder), agent.board
    if found is not None:
        agent.load_state_dict(found, with_sampler=False)
    if agent.plan.weights.version and (made := published_updates(agent.plan)) >= agent.limiter.updates:
        agent.updater.load_flat(published(agent.plan))
        agent.updater.updates = agent.limiter.updates = made
        board.updates[0] = made


def run(plan: AgentPlan, control: ControlBoard, device: str, pipe: Connection) -> None:
    """Body of an agent's own process.

    The pipe carries `("save", frames)` to it, and from it `("row", metrics)`, `("saved", path)`, ``("unsaved",
    why)` or `("error", text)``. `go_on` says from where it goes on.
    """
    child.begin(plan.config, "learner", plan.number, num_threads=plan.config.learner.num_threads)
    trace = open_trace(plan.config, "learner", plan.name)
    try:
        agent = Learner(plan, torch.device(device))
        agent.prepare()
        agent.follow(trace)
        sleep = trace.waiting(time.sleep, "idle", plan.name)
        go_on(agent)
        agent.publish()
        agent.open_limit()
        reported, number = time.monotonic(), 0
        while not control.stopping():
            now = plan.board.learner_heartbeat[0] = time.monotonic()
            if now - reported >= ROW_EVERY_S:
                reported = now
                pipe.send(("row", agent.metrics()))
            if pipe.poll():
                _, number = pipe.recv()
                pipe.send(saved(agent.save, number))
            if not agent.work():
                sleep(IDLE_S)
                plan.board.learner_waited_s[0] += IDLE_S
        pipe.send(saved(agent.save, max(number, plan.board.total_frames())))  # the newest, whoever has more frames
    except (BrokenPipeError, ConnectionResetError, EOFError):
        os._exit(1)  # the main process is gone
    except BaseException as error:
        pipe.send(("error", error_text(error)))
        raise SystemExit(1) from error
    finally:
        save_or_say(trace)
