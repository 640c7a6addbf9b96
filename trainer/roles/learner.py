"""The learner of an agent: samples batches, makes updates, returns new priorities, and publishes the weights.

`trainer.roles.pace` decides when it does so.

Runs in: the main process (one agent, or `agents.learner=sequential` and `stacked`), a process for each agent
(`trainer.roles.learner_process`), or a local agent (`trainer.shared_gradient.local_agent`); on `learner.device`.
Receives: rows of its replay, as its collectors publish them.
Sends: weights through its weights board; its number of updates through its board.
Waits for: nothing.
Stops when: it has made the updates that it was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.algorithms import build
from trainer.host import seeds
from trainer.learning.determinism import be_deterministic
from trainer.learning.feed import Batch, Feed, flat
from trainer.learning.limiter import Limiter
from trainer.learning.normalization import Normalization
from trainer.learning.rates import learning_rates
from trainer.learning.stacking import Stack
from trainer.learning.update import Updater, flat_weights, linear
from trainer.memory.boards import VERSIONS_KEPT
from trainer.replay.buffer import open_replay
from trainer.replay.on_disk import ReplayCopy
from trainer.replay.priorities import moved
from trainer.roles.agents import AgentPlan
from trainer.roles.greedy import Beginning
from trainer.run_folder import checkpoint
from trainer.telemetry.trace import NoTrace, Trace, all_of


class Learner:
    """The learning part of an agent: replay, updater, limiter, and publishing of weights.

    Args:
        plan: of the agent.
        device: of the updates.
        frozen: whether the agent acts without learning.
    """

    def __init__(self, plan: AgentPlan, device: torch.device, frozen: bool = False) -> None:
        config, spec = plan.config, plan.spec
        self.plan, self.name, self.config, self.board, self.frozen = plan, plan.name, config, plan.board, frozen
        be_deterministic(config.learner)
        torch.manual_seed(plan.seed)
        algorithm = build(config.algorithm, config.learner, spec)
        self.replay = open_replay(
            spec, plan.storage, plan.streams, plan.board.cursor, plan.board.oldest, config.algorithm, config.replay,
            config.learner.batch_size, plan.seed, device.type == "cuda", algorithm.first_priority, config.cluster.block,
        )  # fmt: skip
        self.sampler = self.replay.sampler
        self.normalization = Normalization(config.algorithm, self.replay.storage, plan.board.cursor)
        self.feed = Feed(self.replay, device, config.learner.prefetch)
        self.updater = Updater(algorithm, config.learner, device, seeds.of_update_noise(plan.seed))
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
            config.cluster.block,
        )
        self.copy.beat = self.beat
        self._rate, self._fraction = learning_rates(config.learner), 0.0
        self.anneal(0)

    @property
    def learners(self) -> list[Learner]:
        """The learners whose updates it makes: itself."""
        return [self]

    def prepare(self) -> None:
        """Record the update, so that the first one need not; changes no weights."""
        self.updater.prepare(flat(self.replay.example()))

    def follow(self, trace: Trace | NoTrace) -> None:
        """Let a trace follow its methods."""
        self._follow_all_but_updates(trace)
        trace.follow(self.updater, "update", "update", self.name)

    def _follow_all_but_updates(self, trace: Trace | NoTrace) -> None:
        trace.follow(self.feed, "gather", "sample", self.name)
        for method, kind in (("publish", "publish"), ("metrics", "log"), ("save", "checkpoint")):
            trace.follow(self, method, kind, self.name)

    def beat(self) -> None:
        """Give a sign of life, which matters if it has a process of its own."""
        self.board.learner_lives()

    def learn(self, counts: Sequence[int], then: Sequence[int] = (0,)) -> None:
        """Make `counts[0]` updates, on batches that are gathered at once; `then[0]` more follow in the next call."""
        for batch in self.feed.batches(counts[0], then[0]):
            self.updated(batch, self.updater.update(batch))

    def updated(self, batch: Batch, priority: Tensor) -> None:
        """Count an update, return its priorities to the replay, and publish the weights when due."""
        self.replay.reprioritize(batch["stream"], batch["time"], priority)
        self.limiter.updates += 1
        self.board.updates[0] = self.limiter.updates
        if self.limiter.updates < self.config.learner.learning_rate_warmup_updates:
            self._set_learning_rate()
        if self.limiter.updates % self.config.learner.publish_every_updates == 0:
            self.publish()

    def publish(self) -> None:
        """Publish a new version of the weights to the collectors by TorchRL's scheme, without waiting."""
        self.plan.weights.send(self.normalization.published(self.updater.weights))
        self.board.version_updates[self.plan.weights.version % VERSIONS_KEPT] = self.limiter.updates

    def anneal(self, frames: int) -> None:
        """Set learning rate, exponent of importance weights and statistics to their values after `frames` frames."""
        fraction = frames / self.config.budget_frames
        replay, self._fraction = self.config.replay, fraction
        if not self.frozen:
            self.normalization.look()
        self._set_learning_rate()
        self.sampler.beta = linear(replay.priority_beta, replay.priority_beta_end, fraction)

    def _set_learning_rate(self) -> None:
        """That of the schedule, unless a callback has set another one."""
        rate = float(self.board.learning_rate[0]) or self._rate(self._fraction, self.limiter.updates)
        self.updater.set_learning_rate(rate)

    def metrics(self) -> dict[str, float]:
        """Metrics of learning for a row; waits for the device.

        Raises:
            NotFinite: a loss or gradient was NaN or infinite.
        """
        metrics = {"learning_rate": self.updater.learning_rate, **self.updater.metrics()}
        if self.updater.last_batch is not None:
            self.feed.wait()
            metrics |= self.updater.algorithm.diagnose(self.updater.last_batch) | self.sampler.metrics()
        return metrics

    def flat(self) -> Tensor:
        """A copy of the present weights, float32 [numel] on the CPU, in the boards' order."""
        return flat_weights(self.normalization.published(self.updater.weights))

    def critics(self) -> Callable[[list[Beginning]], list[float]] | None:
        """The critics with a copy of their present weights, which say what beginnings of episodes are worth.

        Returns:
            None where the network that acts gives values.
        """
        values = self.updater.algorithm.action_values
        if values is None:
            return None
        of = values.of
        weights = self.normalization.published(self.updater.groups[values.group]).clone()
        returns, device = self.normalization.returns, self.updater.device
        scale = 1.0 if returns is None else float(returns.scale[0])
        names = [*(leaf.name for leaf in self.plan.spec.leaves), "action"]

        @torch.no_grad()
        def judge(begun: list[Beginning]) -> list[float]:
            rows = zip(*[(*one.seen, one.action) for one in begun], strict=True)
            seen = {name: torch.from_numpy(np.stack(row)).to(device) for name, row in zip(names, rows, strict=True)}
            return [value / scale for value in of(weights, seen).tolist()]

        return judge

    def begin_with(self, flat: Tensor) -> None:
        """Take the weights of a policy, float32 [numel], and its statistics."""
        self.updater.load_flat(flat)
        acts, groups = self.updater.algorithm.acts, self.updater.groups
        names = (acts, self.updater.algorithm.targets.get(acts))
        self.normalization.take_out([groups[name] for name in names if name], self.config.learner.warmup_frames)

    def state_dict(self) -> dict[str, Any]:
        """Weights, target network, optimiser, counts, priorities and random states."""
        self.feed.wait()
        self.replay.take_priorities()
        statistics = {"normalization": self.normalization.state_dict()} if self.normalization.active else {}
        return {
            "learner": self.updater.state_dict(),
            "limiter": self.limiter.state_dict(),
            "sampler": self.sampler.state_dict(),
            **statistics,
        }

    def load_state_dict(self, state: dict[str, Any], with_sampler: bool = True) -> None:
        """Restore a checkpoint; without the sampler's part, all priorities are new."""
        self.updater.load_state_dict(state["learner"])
        if self.normalization.active:
            self.normalization.load_state_dict(state["normalization"])
        self.limiter.load_state_dict(state["limiter"])
        if self.board.lost_at[0] >= max(
            1, sum(state["frames_of_workers"])
        ):  # unless the checkpoint was saved after the loss
            self.limiter.begin_again(int(self.board.lost_at[0]), int(self.board.episodes_before[0]))
        self.board.updates[0] = self.limiter.updates
        if with_sampler:
            self.sampler.load_state_dict(state["sampler"])

    def load_replay(self, kept: dict[str, Any], sampler: dict[str, Any]) -> None:
        """Load the replay's rows and the sampler's state of a checkpoint.

        Raises:
            OSError, ValueError, ReadError: the rows are missing or damaged.
        """
        rows, self.board.oldest[:] = self.copy.load(kept)
        self.sampler.load_state_dict(sampler if kept["streams"] == asdict(self.plan.streams) else moved(sampler, rows))

    def save(self, frames: int, **more: Any) -> Path:
        """Save a checkpoint after `frames` frames, with the replay, whole or not at all.

        Raises:
            OSError: it could not be written.
        """
        state = {**self.state_dict(), "frames": frames, "seed": self.plan.seed, **more}
        state["frames_of_workers"], state["episodes_done"] = self.board.frames.tolist(), self.board.total_episodes()
        state["replay"] = self.copy.save() if self.config.checkpoint.replay else None
        path = checkpoint.save(self.plan.folder, state, frames, self.config.checkpoint.keep_last)
        if state["replay"] is not None:
            self.copy.forget_other_layouts()
        return path


class LearnerStack:
    """Learners of one shape, whose due updates are made in one call; replay, limiter and optimiser are separate.

    Args:
        learners: at least two, with the same `trainer.roles.agents.update_key`.
    """

    def __init__(self, learners: list[Learner]) -> None:
        self.learners = learners
        self.stack = Stack([learner.updater for learner in learners])

    def prepare(self) -> None:
        """Record the update, so that the first one need not; changes no weights."""
        self.stack.prepare(flat(self.learners[0].replay.example()))

    def follow(self, trace: Trace | NoTrace) -> None:
        """Let a trace follow its methods."""
        for learner in self.learners:
            learner._follow_all_but_updates(trace)
        trace.follow(self.stack, "update", "update", all_of([learner.name for learner in self.learners]))

    def learn(self, counts: Sequence[int], then: Sequence[int] | None = None) -> None:
        """Make `counts[a]` updates of agent a, each on batches of its own replay; `then[a]` more follow next."""
        then = then or [0] * len(counts)
        fed = [
            learner.feed.batches(count, more) for learner, count, more in zip(self.learners, counts, then, strict=True)
        ]
        for _ in range(max(counts)):
            batches = [next(batches, None) for batches in fed]
            for learner, batch, priority in zip(self.learners, batches, self.stack.update(batches), strict=True):
                if batch is not None:
                    learner.updated(batch, priority)
