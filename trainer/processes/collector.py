"""The collector: steps a vector environment with the exploration policy and writes transitions into the replay.

Runs in: a process for each worker, inside TorchRL's ``MultiAsyncCollector``; in the main process for ``sequential``.
Receives: weights from the weights board; orders from the control board.
Sends: rows into its own streams of the replay, then their cursor; counters and episodes onto the control board.
Waits for: the control board's ``frame_limit`` (async) or ``round`` (sync).
Stops when: the control board says so; its own exception (left on the board); the parent's death.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector

import envs
from envs import EnvSpec
from envs.torchrl import VectorEnvironment
from trainer.acting import Explorer, FrameStacks, apex_ladder, greedy_policy, linear_epsilon
from trainer.algorithms import ALGORITHMS
from trainer.boards import ControlBoard, WeightsReader, error_text, flatten_parameters
from trainer.config import SEEDS_PER_RUN, Config
from trainer.replay import StreamLayout, worker_rows
from trainer.signals import obey_parent

WAIT_S = 2e-4  # between two looks at the control board


@dataclass(frozen=True)
class CollectorPlan:
    """All that a worker is built from; crosses the process border once, at the start.

    Args:
        config: the run.
        spec: the environment.
        streams: the replay's layout.
        worker: its number, 0 .. W - 1.
    """

    config: Config
    spec: EnvSpec
    streams: StreamLayout
    worker: int


class Rollout:
    """A worker's environments and where they stand; :meth:`step` is the way of a transition into the replay.

    Args:
        plan: what to build.
        board: control board.
        weights: reader of the weights board.
        rows: the worker's columns [ring, N, ...], from :func:`trainer.replay.worker_rows`.
        vector: the environments, not yet reset.
        policy: the actor whose network chooses; its parameters are replaced by the board's.
    """

    def __init__(
        self,
        plan: CollectorPlan,
        board: ControlBoard,
        weights: WeightsReader,
        rows: dict[str, np.ndarray],
        vector: Any,
        policy: TensorDictModule,
    ) -> None:
        self.config, self.spec, self.worker = plan.config.collector, plan.spec, plan.worker
        self.schedule = plan.config.schedule
        self.board, self.weights, self.rows, self.vector = board, weights, rows, vector
        self.flat = flatten_parameters(policy)
        n, own = vector.num_envs, plan.streams.streams_of(plan.worker)
        self.num_envs, self.ring = n, plan.streams.ring
        self.cursor = board.cursor[own]
        self.time = int(self.cursor[0])
        self.explorer = Explorer(n, plan.spec.num_actions, [plan.config.seed, plan.worker])
        self.ladder = (
            apex_ladder(self.config, plan.streams.num_streams)[own] if self.config.exploration == "apex" else None
        )
        network = policy.module[0].module
        self.noisy = network.noise_size > 0  # explores in place of epsilon
        self.values = np.zeros((n, plan.spec.num_actions), np.float32)  # that the last actions were chosen by
        board.epsilon[plan.worker] = 0.0 if self.ladder is None or self.noisy else self.ladder.mean()
        self.observation = vector.reset(plan.config.seed * SEEDS_PER_RUN + own.start)
        self.stacks = FrameStacks(plan.spec, n)
        self.stacks.push(self.observation, np.ones(n, bool))
        mask = self.observation.get("action_mask")
        seed = [plan.config.seed, plan.worker, 1]
        self.greedy = greedy_policy(network, self.stacks.seen(self.observation), mask, seed)
        self.ended = np.zeros(n, bool)  # whose row to be written is final
        self.age = np.zeros(n, np.int32)  # steps since the episode's first observation
        self.num_ended = 0
        self.returns = np.zeros(n)

    def act(self, frames: int) -> np.ndarray:
        """Exploring actions int64 [N] for the current observation, after ``frames`` frames of all workers."""
        seen = self.stacks.seen(self.observation)
        mask = self.observation.get("action_mask")
        action, self.values = self.greedy(seen, mask)
        if self.noisy:
            return action
        if self.ladder is not None:
            return self.explorer(action, self.ladder, mask)
        epsilon = linear_epsilon(self.config, frames)
        self.board.epsilon[self.worker] = epsilon
        return self.explorer(action, epsilon, mask)

    def step(self, frames: int) -> None:
        """One step of every sub-environment: its row, then the cursor.

        ``frames`` says how far exploration has fallen.
        """
        rows, i = self.rows, self.time % self.ring
        for name, array in self.observation.items():
            rows[name][i] = array
        rows["final"][i] = self.ended
        if "age" in rows:
            rows["age"][i] = self.age
        action = self.act(frames)
        rows["action"][i] = action
        if "value_best" in rows:
            rows["value_taken"][i] = self.values[np.arange(self.num_envs), action]
            rows["value_best"][i] = self.values.max(1)
        self.observation, reward, terminated, truncated = self.vector.step(action)
        rows["reward"][i], rows["terminated"][i], rows["truncated"][i] = reward, terminated, truncated
        self.time += 1
        self.cursor[:] = self.time  # publish: after the row, never before

        fresh, self.ended = self.ended, terminated | truncated
        self.stacks.push(self.observation, fresh)
        self.age += 1
        self.returns += self.vector.raw_reward
        if self.num_ended:
            self.age[fresh] = 0
        self.board.frames[self.worker] += self.num_envs - self.num_ended  # a final row is no transition
        self.num_ended = int(np.count_nonzero(self.ended))
        if self.num_ended:
            self._finish_episodes()
        self.board.heartbeat[self.worker] = time.monotonic()

    def _finish_episodes(self) -> None:
        board, worker, ring = self.board, self.worker, self.board.episodes[self.worker]
        done, count = np.flatnonzero(self.ended), int(board.episodes_done[worker])
        slots = (count + np.arange(len(done))) % len(ring)
        ring[slots, 0], ring[slots, 1], ring[slots, 2] = self.returns[done], self.age[done], board.total_frames()
        board.episodes_done[worker] = count + len(done)
        self.returns[done] = 0

    @torch.inference_mode()
    def run(self) -> None:
        """Asynchronous: step with the newest weights until told to stop, or paused by the frame limit."""
        board = self.board
        while not board.stopping():
            frames = board.total_frames()
            if frames >= board.frame_limit[0]:
                self._wait()
                continue
            board.version[self.worker] = self.weights.pull(self.flat)
            self.step(frames)

    def run_rounds(self) -> None:
        """Synchronous: collect a round whenever the main process asks for the next one."""
        board = self.board
        while not board.stopping():
            if board.round[0] > board.rounds_done[self.worker]:
                self.collect_round()
            else:
                self._wait()

    @torch.inference_mode()
    def collect_round(self) -> None:
        """One round with the newest weights: a fixed number of vector steps, or of finished episodes."""
        board, worker, frames = self.board, self.worker, int(self.board.schedule_frames[0])
        board.version[worker] = self.weights.pull(self.flat)
        if self.schedule.episodes_per_round is not None:
            target = board.episodes_done[worker] + self.schedule.episodes_per_round
            while board.episodes_done[worker] < target and not board.stopping():
                self.step(frames)
        else:
            assert self.schedule.frames_per_round is not None  # a run's configuration is resolved
            for _ in range(self.schedule.frames_per_round // len(board.cursor)):
                if board.stopping():
                    return
                self.step(frames)
        board.rounds_done[worker] += 1

    def _wait(self) -> None:
        start = time.monotonic()
        time.sleep(WAIT_S)
        now = time.monotonic()
        self.board.waited_s[self.worker] += now - start
        self.board.heartbeat[self.worker] = now


class StreamCollector(Collector):
    """TorchRL's collector with our rollout loop; rows go into the replay inside :meth:`rollout`.

    Whatever goes wrong is left on the control board, where the main process finds it and names the worker.
    """

    _rollout: Rollout | None = None

    def __init__(self, *args: Any, create_env_kwargs: dict[str, Any], **kwargs: Any) -> None:
        try:
            super().__init__(*args, create_env_kwargs=create_env_kwargs, **kwargs)
        except Exception as error:
            create_env_kwargs["board"].write_error(create_env_kwargs["plan"].worker, error_text(error))
            raise

    def rollout(self) -> TensorDict:
        """Collect until told to stop; TorchRL's runner then finds the order to close in its pipe."""
        board, plan = self.env.board, self.env.plan
        try:
            if self._rollout is None:
                rows = worker_rows(self.replay_buffer._storage, plan.streams, plan.worker)
                reader = self._receiver_schemes["policy"].reader()
                self._rollout = Rollout(plan, board, reader, rows, self.env.vector, self.policy)
            if plan.config.schedule.name == "async":
                self._rollout.run()
            else:
                self._rollout.run_rounds()
        except Exception as error:
            board.write_error(plan.worker, error_text(error))
            sys.exit(1)
        return TensorDict({}, [1])


def make_environment(plan: CollectorPlan, board: ControlBoard) -> VectorEnvironment:
    """A worker's environments, built in its process; also where the process gets its habits."""
    board.pid[plan.worker] = os.getpid()
    obey_parent()
    torch.set_num_threads(1)
    vector = envs.make(plan.config.env, plan.streams.envs_per_worker)
    environment = VectorEnvironment(vector)
    environment.plan, environment.board = plan, board
    return environment


def make_policy(config: Config, spec: EnvSpec) -> TensorDictModule:
    """The actor that a worker acts by, on the CPU, with weights to be replaced by the board's."""
    return ALGORITHMS[config.algorithm.name](config.algorithm, config.learner, spec).policy
