"""Builds a run's parts, and starts and stops its processes: the only place that does.

A reader's next file is ``train.py``, the loop that these parts run in.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import os
import signal
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp
from torchrl.collectors import MultiAsyncCollector

import envs
from envs import EnvSpec
from trainer import checkpoint
from trainer.algorithms import ALGORITHMS
from trainer.boards import RUN, STOP, ControlBoard, WeightsBoard, ordered_leaves, split_error
from trainer.config import SEEDS_PER_RUN, Config, ConfigError, first_line
from trainer.diagnostics import diagnose
from trainer.errors import RunFailed, exit_words
from trainer.evaluators import LocalEvaluator, RemoteEvaluator
from trainer.limiter import Limiter
from trainer.loggers import Loggers
from trainer.priorities import PrioritizedStreamSampler
from trainer.processes import collector as collecting
from trainer.processes import evaluator as evaluating
from trainer.processes.learner import Learner, flat_weights, linear
from trainer.replay import StreamLayout, StreamReplay, StreamSampler, open_storage
from trainer.signals import StopSignals
from trainer.telemetry import Telemetry

SUPERVISE_EVERY_S = 0.1
SHUTDOWN_S = 4.0  # until what does not end by itself is killed
START_ERROR_S = 3.0  # until the exit code of a process that failed to start is known
POLL_S = 2e-4


@dataclass
class System:
    """A run's parts, from :func:`build`. Whoever holds it calls :meth:`close`."""

    config: Config
    run_dir: Path
    spec: EnvSpec
    device: torch.device
    board: ControlBoard
    weights_board: WeightsBoard
    replay: StreamReplay
    learner: Learner
    limiter: Limiter
    telemetry: Telemetry
    loggers: Loggers
    stop: StopSignals
    collector: MultiAsyncCollector | None = None  # None in the schedule `sequential`
    rollouts: list[collecting.Rollout] = field(default_factory=list)  # virtual workers of `sequential`
    evaluator: RemoteEvaluator | LocalEvaluator | None = None

    def update(self, batch: Any) -> None:
        """One update, and the weights to the collectors when due."""
        self.replay.reprioritize(batch, self.learner.update(batch))
        self.limiter.updates += 1
        if self.limiter.updates % self.config.learner.publish_every_updates == 0:
            self.publish()

    def anneal(self, frames: int) -> None:
        """Learning rate and exponent of importance weights, as they are to be after ``frames`` frames."""
        fraction = frames / self.config.budget_frames
        rates, replay = self.config.learner, self.config.replay
        self.learner.set_learning_rate(linear(rates.learning_rate, rates.learning_rate_end, fraction))
        self.sampler.beta = linear(replay.priority_beta, replay.priority_beta_end, fraction)

    def row(self) -> dict[str, Any]:
        """What is known of the run now, for the loggers; waits for the device.

        Raises:
            NotFinite: a loss was NaN or infinite.
        """
        figures = self.learner.metrics()
        if self.learner.last_batch is not None:
            figures |= diagnose(self.learner.algorithm, self.learner.last_batch) | self.sampler.figures()
        return self.telemetry.row(self.learner.updates, figures)

    @property
    def sampler(self) -> StreamSampler | PrioritizedStreamSampler:
        """What draws from the replay."""
        return self.replay._sampler

    def publish(self) -> None:
        """Hand the collectors a new version of the weights; waits for none of them."""
        if self.collector is not None:
            self.collector.update_policy_weights_(self.learner.weights)
        else:
            self.weights_board.send(self.learner.weights)
        self.telemetry.published(self.weights_board.version, self.limiter.updates)

    def check(self) -> None:
        """Raise RunFailed if a process died. Cheap enough for every wait."""
        for worker, process in enumerate(getattr(self.collector, "procs", ())):
            if process.exitcode is not None:
                raise self._death(worker, process.exitcode)
        if self.evaluator is not None:
            self.evaluator.check()

    def _death(self, worker: int, exitcode: int) -> RunFailed:
        traceback, cause = split_error(self.board.read_error(worker))
        own, frames = self.config.collector.envs_per_worker, self.board.frames[worker]
        return RunFailed(
            f"collector worker {worker} (pid {self.board.pid[worker]}, {own} x {self.spec.id}, seeds from "
            f"{self.config.seed * SEEDS_PER_RUN + worker * own}) died "
            f"{f'after {frames} frames' if frames else 'while starting'}: "
            f"{cause or f'it was ended by {exit_words(exitcode)}'}",
            role=f"collector {worker}",
            traceback=traceback,
        )

    def state_dict(self, frames: int) -> dict[str, Any]:
        """What a checkpoint holds: weights, target, optimiser, counters, priorities, schedules and random states."""
        self.replay.take_priorities()
        return {
            "learner": self.learner.state_dict(),
            "limiter": self.limiter.state_dict(),
            "sampler": self.sampler.state_dict(),
            "frames": frames,
            "episodes": self.telemetry.episodes.state_dict(),
            "torch_rng": torch.get_rng_state(),
            "seed": self.config.seed,
        }

    def save(self, frames: int) -> Path:
        """A checkpoint after ``frames`` frames, and the policy to play by; written aside and renamed."""
        folder = self.run_dir / "checkpoints"
        evaluating.save_policy(folder / "last_policy.pt", flat_weights(self.learner), frames, float("nan"))
        return checkpoint.save(folder, self.state_dict(frames), frames, self.config.checkpoint.keep_last)

    def start(self) -> None:
        """Start every process; in the schedule ``sequential``, build the virtual workers instead.

        Raises:
            RunFailed: a process could not be started; :meth:`close` stops the others.
        """
        config, streams = self.config, self.replay._sampler.streams
        plans = [collecting.CollectorPlan(config, self.spec, streams, worker) for worker in range(streams.num_workers)]
        if config.schedule.name == "sequential":
            self.evaluator = LocalEvaluator(config, self.spec, self.run_dir, self.learner)
            self.rollouts = [_virtual_worker(plan, self.board, self.weights_board, self.replay) for plan in plans]
        else:
            use_fork_server()
            self.learner.prepare(self.replay.example())  # while the fork server imports; the next line waits for it
            self._start_evaluator()
            self._start_collector(plans)
        torch.set_num_threads(config.learner.num_threads)  # TorchRL changed it (torchrl.md, trap 18)

    def _start_evaluator(self) -> None:
        config, weights = self.config, flat_weights(self.learner).share_memory_()
        pipe, theirs = mp.Pipe()
        process = mp.get_context().Process(
            target=evaluating.run,
            args=(config, self.spec, self.run_dir, weights, theirs),
            name="evaluator",
            daemon=True,
        )
        process.start()
        theirs.close()
        what = f"{min(config.evaluator.num_envs, config.evaluator.episodes)} x {self.spec.id}"
        self.evaluator = RemoteEvaluator(process, pipe, weights, self.learner, what)

    def _start_collector(self, plans: list[collecting.CollectorPlan]) -> None:
        # Made in two steps, so that close() finds the workers also when the constructor fails, or is interrupted as it
        # waits for a worker whose environment is hung.
        self.collector = MultiAsyncCollector.__new__(MultiAsyncCollector)
        try:
            self.collector.__init__(**collector_arguments(plans, self.board, self.weights_board, self.replay))
        except Exception as error:  # a worker's own one, of any type, or TorchRL's about a worker that is gone
            deadline = time.monotonic() + START_ERROR_S
            while time.monotonic() < deadline:  # the worker is named as soon as it is gone
                self.check()
                time.sleep(POLL_S)
            raise RunFailed(f"the collector workers could not be started: {first_line(error)}") from error
        self.collector.start()

    def close(self) -> None:
        """Stop every process. Safe to call twice, and after any failure."""
        self.board.command[0] = STOP
        if self.evaluator is not None:
            self.evaluator.close()
        if self.collector is not None:
            self.collector.shutdown(timeout=SHUTDOWN_S, raise_on_error=False)
        for rollout in self.rollouts:
            rollout.vector.close()
        self.evaluator, self.collector, self.rollouts = None, None, []
        torch.set_num_threads(self.config.learner.num_threads)


def build(
    config: Config, run_dir: Path, spec: EnvSpec, device: torch.device, streams: StreamLayout, scratch: Path,
    loggers: Loggers, stop: StopSignals,
) -> System:  # fmt: skip
    """Build every part that lives in this process; :meth:`System.start` starts the others."""
    algorithm = ALGORITHMS[config.algorithm.name](config.algorithm, config.learner, spec)
    board = ControlBoard(streams.num_workers, streams.num_streams)
    board.command[0] = RUN
    storage = open_storage(spec, streams, scratch, wants_values(config))
    sampler = StreamSampler(
        board.cursor, streams, ahead=config.algorithm.n_step, behind=spec.stack - 1, seed=config.seed
    )
    replay = StreamReplay(
        spec, storage, sampler, config.algorithm.gamma, config.algorithm.n_step, config.learner.batch_size,
        pin_memory=device.type == "cuda",
    )  # fmt: skip
    if config.algorithm.prioritized:
        prioritized = PrioritizedStreamSampler(
            sampler, config.replay.priority_alpha, config.replay.priority_beta, config.replay.priority_eps,
            storage._storage["final"].numpy(),
        )  # fmt: skip
        prioritized.first = replay.first_errors if wants_values(config) else None
        replay._sampler = prioritized
    learner = Learner(algorithm, config.learner, config.algorithm, device)
    weights_board = WeightsBoard(sum(w.numel() for w in ordered_leaves(learner.weights)))
    assert config.schedule.tolerance_frames is not None  # `config` is resolved
    limiter = Limiter(
        config.budget_frames, config.learner.warmup_frames, config.schedule.frames_per_update,
        config.schedule.tolerance_frames,
    )  # fmt: skip
    telemetry = Telemetry(config, board, streams.rows)
    return System(
        config, run_dir, spec, device, board, weights_board, replay, learner, limiter, telemetry, loggers, stop
    )


def wants_values(config: Config) -> bool:
    """Whether collectors store the values that they act by, for first priorities."""
    return config.algorithm.prioritized and config.replay.initial_priority == "collector"


def _virtual_worker(
    plan: collecting.CollectorPlan, board: ControlBoard, weights_board: WeightsBoard, replay: StreamReplay
) -> collecting.Rollout:
    rows = collecting.worker_rows(replay._storage, plan.streams, plan.worker)
    vector = envs.make(plan.config.env, plan.streams.envs_per_worker)
    with torch.random.fork_rng():
        policy = collecting.make_policy(plan.config, plan.spec)
    return collecting.Rollout(plan, board, weights_board.reader(), rows, vector, policy)


def use_fork_server() -> None:
    """Children come from a server that has imported torch once; one thread each unless they say otherwise."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    mp.set_start_method("forkserver", force=True)  # importing torchrl has set spawn
    multiprocessing.set_forkserver_preload(
        ["trainer.forkserver", "trainer.processes.collector", "trainer.processes.evaluator"]
    )
    # Blocked from birth, for Ctrl-C goes to them too; until they say so themselves it would end them with a traceback.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def collector_arguments(
    plans: list[collecting.CollectorPlan], board: ControlBoard, weights_board: WeightsBoard, replay: StreamReplay
) -> dict[str, Any]:
    """What TorchRL's collector is made of."""
    config, spec = plans[0].config, plans[0].spec
    make_policy = partial(collecting.make_policy, config, spec)
    with torch.random.fork_rng(devices=[]):
        policy = make_policy()  # not the learner's: TorchRL moves what it gets into shared memory (torchrl.md, trap 5)
    return {
        "create_env_fn": [collecting.make_environment] * len(plans),
        "create_env_kwargs": [{"plan": plan, "board": board} for plan in plans],
        "policy": policy,
        "policy_factory": make_policy,
        "frames_per_batch": config.collector.envs_per_worker,
        "total_frames": -1,
        "replay_buffer": replay,
        "extend_buffer": False,
        "collector_class": collecting.StreamCollector,
        "weight_sync_schemes": {"policy": weights_board},
    }


def choose_device(name: str) -> torch.device:
    """``auto`` is the first CUDA device, or the CPU.

    Raises:
        ConfigError: a device that is not there.
    """
    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count()):
        raise ConfigError(
            f"learner.device={name} is not there: torch sees {torch.cuda.device_count()} CUDA devices; "
            "use learner.device=cpu or auto"
        )
    return device
