"""Builds a run's parts, starts and stops its processes, and trains.

The way of a transition: ``processes/collector.py`` -> ``replay.py`` -> ``processes/learner.py``; weights go back by
``update_policy_weights_``. Everything between processes is shared memory without locks (``boards.py``, ``replay.py``).
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
import torch.multiprocessing as mp
from torchrl.collectors import MultiAsyncCollector

import envs
from envs import EnvError, EnvSpec
from trainer import checkpoint, plot, run_folder
from trainer.algorithms import ALGORITHMS
from trainer.boards import RUN, STOP, ControlBoard, WeightsBoard, ordered_leaves, split_error
from trainer.config import Config, ConfigError, first_line, to_dict
from trainer.limiter import Limiter
from trainer.loggers import Loggers, RunInfo, open_loggers
from trainer.loggers.sink import plain_value
from trainer.metrics import Every, EverySeconds
from trainer.processes import collector as collecting
from trainer.processes import evaluator as evaluating
from trainer.processes.evaluator import Evaluation
from trainer.processes.learner import Learner, NotFinite, feed, linear
from trainer.replay import StreamLayout, StreamReplay, StreamSampler, layout, open_storage, row_bytes
from trainer.resources import check_fits
from trainer.signals import Stopped, StopSignals
from trainer.telemetry import Telemetry

IDLE_S = 2e-4  # between two looks of a learner that has nothing due
SUPERVISE_EVERY_S = 0.1
SHUTDOWN_S = 4.0  # until what does not end by itself is killed
STOP_S = 2.0  # until a signal interrupts a training loop that does not look at it
START_ERROR_S = 3.0  # until the exit code of a process that failed to start is known


class RunFailed(RuntimeError):
    """A run that ended before its budget for no wish of the user's; its text is one sentence for the user.

    Args:
        text: the sentence.
        role: the process that failed.
        traceback: its own traceback, if it left one.
    """

    def __init__(self, text: str, role: str = "main", traceback: str = "") -> None:
        super().__init__(text)
        self.role, self.traceback = role, traceback


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
        self.learner.update(batch)
        self.limiter.updates += 1
        if self.limiter.updates % self.config.learner.publish_every_updates == 0:
            self.publish()

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
            f"{self.config.seed * collecting.SEEDS_PER_RUN + worker * own}) died "
            f"{f'after {frames} frames' if frames else 'while starting'}: "
            f"{cause or f'it was ended by {_exit_words(exitcode)}'}",
            role=f"collector {worker}",
            traceback=traceback,
        )

    def state_dict(self, frames: int) -> dict[str, Any]:
        """What a checkpoint holds: weights, target, optimiser, counters, schedules and random states."""
        return {
            "learner": self.learner.state_dict(),
            "limiter": self.limiter.state_dict(),
            "sampler": self.replay._sampler.state_dict(),
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
            self.evaluator = RemoteEvaluator(config, self.spec, self.run_dir, self.learner)
            self._start_collector(plans)
        torch.set_num_threads(config.learner.num_threads)  # TorchRL changed it (torchrl.md, trap 18)

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
                time.sleep(IDLE_S)
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


def train(config: Config, command: list[str]) -> dict[str, Any]:
    """Train as ``config`` says and return what RUN/summary.json holds, ``stop_signal`` being the signal that ended it.

    Args:
        config: validated, with every None resolved.
        command: the command line, for the run's folder.

    Raises:
        ConfigError, EnvError: nothing was started.
        RunFailed: a process died or the loss was not finite; everything is stopped, and there is a checkpoint if
            training had begun.
    """
    torch.set_num_threads(config.learner.num_threads)
    torch.manual_seed(config.seed)
    spec = envs.describe(config.env)
    device = choose_device(config.learner.device)
    run_dir, config = run_folder.create(config, command)
    streams = layout(config.replay.capacity_frames, config.collector.num_workers, config.collector.envs_per_worker)
    scratch = Path(config.replay.scratch_dir or run_dir / "scratch") / f"replay_{os.getpid()}"
    info = RunInfo(
        run_dir, config.env.id, config.algorithm.name, config.seed, config.budget_frames, to_dict(config),
        streams.num_workers, streams.num_streams, str(device),
    )  # fmt: skip
    loggers = open_loggers(config.logger, info)
    summary: dict[str, Any] = {
        "env_id": config.env.id, "algorithm": config.algorithm.name, "seed": config.seed, "preset": config.preset,
        "status": "failed", "reason": "", "stop_signal": None, "frames": 0, "updates": 0, "wall_s": 0.0,
        "frames_per_s": 0.0, "updates_per_s": 0.0, "eval_return_mean": None, "eval_return_std": None,
        "eval_episodes": None,
    }  # fmt: skip
    start = time.monotonic()
    with StopSignals(leftovers=scratch) as stop:
        try:
            scratch.mkdir(parents=True)
            fits = check_fits(row_bytes(spec) * streams.rows, scratch, streams.num_workers, shared_bytes=2**24)
            loggers.event(f"run folder {run_dir}; {fits}")
            _run(build(config, run_dir, spec, device, streams, scratch, loggers, stop), summary)
        except Stopped:
            summary |= {"status": "stopped", "reason": f"signal {stop.name}", "stop_signal": stop.number}
        except Exception as error:
            summary["reason"] = first_line(error)
            if isinstance(error, RunFailed) and error.traceback:
                loggers.event(f"traceback of the {error.role}:\n{error.traceback}", role=error.role)
            raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
            summary["total_s"] = time.monotonic() - start
            summary = {key: plain_value(value) for key, value in summary.items()}
            run_folder.write_json(run_dir / "summary.json", summary)
            plot.curve(run_dir)
            loggers.close(summary)
    return summary


def _run(system: System, summary: dict[str, Any]) -> None:
    """Start the system, train, stop it and evaluate; ``summary`` takes what is known, however that ends."""
    stop = system.stop
    try:
        with stop.raising(after_s=0):
            system.start()
        try:
            with stop.raising(after_s=STOP_S):
                summary |= _train(system)
            system.learner.check()
        except (RunFailed, EnvError, NotFinite) as error:
            if stop.number:  # it went to the workers too, and they were faster
                raise Stopped from error
            role, traceback = getattr(error, "role", "main"), getattr(error, "traceback", "")
            raise RunFailed(f"{error} (checkpoints: {system.run_dir / 'checkpoints'})", role, traceback) from error
        finally:
            summary |= _last_figures(system)
            system.save(summary["frames"])
    finally:
        system.close()
    with stop.raising(after_s=0):
        summary |= final_evaluation(system)
    summary |= {"status": "finished"}


def _train(system: System) -> dict[str, Any]:
    """The training loop: a schedule collects and learns, everything else happens when its time has come."""
    config, learner, evaluator = system.config, system.learner, system.evaluator
    assert evaluator is not None  # the system is started
    evaluate_every = Every(config.evaluator.every_frames)
    save_every = EverySeconds(config.checkpoint.save_every_seconds)
    log_every, supervise_every = EverySeconds(config.logger.every_seconds), EverySeconds(SUPERVISE_EVERY_S)
    start = system.telemetry.start = time.monotonic()
    system.publish()
    for _ in SCHEDULES[config.schedule.name](system):
        if system.stop.number:
            raise Stopped
        frames = system.board.total_frames()
        if supervise_every.crossed():
            system.check()
            fraction = frames / config.budget_frames
            learner.set_learning_rate(linear(config.learner.learning_rate, config.learner.learning_rate_end, fraction))
        if evaluate_every.crossed(frames):
            evaluator.request(frames)
        if evaluation := evaluator.poll():
            report(system, evaluation)
            if reached(config, evaluation):
                return {
                    "reason": f"evaluator.stop_at_return={config.evaluator.stop_at_return:g} was reached",
                    "solved_s": evaluation.taken_at - start,
                    "solved_frames": evaluation.frames,
                }
        if log_every.crossed():
            system.loggers.write(system.telemetry.row(learner.updates, learner.metrics()))
        if save_every.crossed():
            system.save(frames)
    if system.stop.number:  # the schedule saw it first
        raise Stopped
    return {"reason": "the budget is used up", "solved_s": None, "solved_frames": None}


def _last_figures(system: System) -> dict[str, Any]:
    """The last row for the loggers, and what the summary takes of it."""
    learner, wall_s = system.learner, time.monotonic() - system.telemetry.start
    try:
        figures = learner.metrics()
    except NotFinite:  # which is what the run ends with
        figures = {}
    row = system.telemetry.row(learner.updates, figures)
    system.loggers.write(row)
    return {
        "frames": row["frames"], "updates": row["updates"], "wall_s": wall_s, "frames_per_s": row["frames"] / wall_s,
        "updates_per_s": row["updates"] / wall_s, "episodes": row["episodes"], "return_mean": row["return_mean"],
        "redrawn_rows": system.replay.redrawn,
    }  # fmt: skip


# ------------------------------------------------------------------ schedules


def run_async(system: System) -> Iterator[None]:
    """Collectors run free; the limiter is the only brake, on either side."""
    config, board, limiter = system.config, system.board, system.limiter
    board.frame_limit[0] = limiter.frame_limit()
    while not limiter.finished(board.total_frames()):
        due = min(limiter.due(board.total_frames()), config.learner.prefetch_batches)
        if due:
            for batch in feed(system.replay, system.device, int(due)):
                system.update(batch)
            board.frame_limit[0] = limiter.frame_limit()
        else:
            time.sleep(IDLE_S)
            system.telemetry.learner_waited_s += IDLE_S
        yield


def run_sync(system: System) -> Iterator[None]:
    """The workers collect a round, then come its updates, then new weights: as ``sequential``, in several processes."""
    board, period = system.board, EverySeconds(SUPERVISE_EVERY_S)

    def collect() -> None:
        board.round[0] += 1
        while (board.rounds_done < board.round[0]).any() and not system.stop.number:
            time.sleep(IDLE_S)
            if period.crossed():
                system.check()

    return _rounds(system, collect)


def run_sequential(system: System) -> Iterator[None]:
    """Everything in one process, worker after worker: the reference, and for debugging."""

    def collect() -> None:
        system.board.round[0] += 1
        for rollout in system.rollouts:
            rollout.collect_round()

    return _rounds(system, collect)


def _rounds(system: System, collect: Callable[[], None]) -> Iterator[None]:
    config, board, limiter = system.config, system.board, system.limiter
    while board.total_frames() < config.budget_frames and not system.stop.number:
        board.schedule_frames[0] = board.total_frames()  # exploration does not depend on who is faster
        collect()
        yield
        frames = board.total_frames()
        due = limiter.due(frames)
        if config.schedule.updates_per_round is not None:
            due = config.schedule.updates_per_round if frames >= config.learner.warmup_frames else 0
        while due > 0 and not system.stop.number:
            chunk = int(min(due, config.learner.prefetch_batches))
            for batch in feed(system.replay, system.device, chunk):
                system.update(batch)
            due -= chunk
            yield
        system.publish()


SCHEDULES: dict[str, Callable[[System], Iterator[None]]] = {
    "async": run_async,
    "sync": run_sync,
    "sequential": run_sequential,
}

# ------------------------------------------------------------------ evaluation


class RemoteEvaluator:
    """The evaluator's process as the main process sees it: one request at a time, the newest wins.

    Args:
        config: the run.
        spec: its environment.
        run_dir: its folder.
        learner: whose weights are evaluated.
    """

    def __init__(self, config: Config, spec: EnvSpec, run_dir: Path, learner: Learner) -> None:
        self._learner = learner
        self._what = f"{min(config.evaluator.num_envs, config.evaluator.episodes)} x {spec.id}"
        self._weights = flat_weights(learner).share_memory_()
        self._pipe, theirs = mp.Pipe()
        self._process = mp.get_context().Process(
            target=evaluating.run, args=(config, spec, run_dir, self._weights, theirs), name="evaluator", daemon=True
        )
        self._process.start()
        theirs.close()
        self._busy, self._wanted = False, -1

    def request(self, frames: int) -> None:
        """Evaluate the weights of now, or, while the evaluator is busy, those of the moment it is free."""
        self._wanted = frames
        self._send()

    def _send(self) -> None:
        if self._busy or self._wanted < 0:
            return
        self._weights.copy_(flat_weights(self._learner))
        try:
            self._pipe.send((self._wanted, time.monotonic()))
        except OSError:  # the process died
            self._fail("")
        self._busy, self._wanted = True, -1

    def poll(self) -> Evaluation | None:
        """A finished evaluation, if there is one.

        Raises:
            RunFailed: the process failed.
        """
        if not self._pipe.poll():
            return None
        try:
            answer = self._pipe.recv()
        except (EOFError, OSError):
            self._fail("")
        if isinstance(answer, str):
            self._fail(answer)
        self._busy = False
        self._send()
        return answer

    def check(self) -> None:
        """Raise RunFailed if the process died."""
        if self._process.exitcode is not None and not self._pipe.poll():  # else poll() tells what is left in the pipe
            self._fail("")

    def _fail(self, error: str) -> NoReturn:
        self._process.join(START_ERROR_S)  # its exit code comes a little later than the end of its pipe
        code = self._process.exitcode
        traceback, cause = split_error(error)
        raise RunFailed(
            f"the evaluator (pid {self._process.pid}, {self._what}) died: "
            f"{cause or ('it closed its pipe' if code is None else f'it was ended by {_exit_words(code)}')}",
            role="evaluator",
            traceback=traceback,
        )

    def close(self) -> None:
        """End the process, whatever it does."""
        self._pipe.close()
        self._process.terminate()
        self._process.join(2)
        if self._process.exitcode is None:
            self._process.kill()


class LocalEvaluator:
    """Evaluates at once in this process: for ``sequential``."""

    def __init__(self, config: Config, spec: EnvSpec, run_dir: Path, learner: Learner) -> None:
        self._config, self._run_dir, self._learner = config, run_dir, learner
        # Building a policy draws from the global generator, from which training draws too.
        with torch.random.fork_rng():
            self._policy = evaluating.Policy(config, spec)
        self._vector = envs.make(config.env, min(config.evaluator.num_envs, config.evaluator.episodes))
        self._result: Evaluation | None = None
        self._best = -np.inf

    def request(self, frames: int) -> None:
        """Evaluate the weights of now."""
        start = time.monotonic()
        self._policy.load(flat_weights(self._learner))
        seed = self._config.seed * collecting.SEEDS_PER_RUN + evaluating.SEED_OFFSET
        returns, lengths = evaluating.evaluate(self._policy, self._vector, self._config.evaluator.episodes, seed)
        mean = float(np.mean(returns))
        best = mean > self._best
        if best:
            self._best = mean
            evaluating.save_policy(self._run_dir / "best" / "policy.pt", self._policy.flat, frames, mean)
        self._result = Evaluation(frames, returns, lengths, time.monotonic() - start, start, best)

    def poll(self) -> Evaluation | None:
        """The evaluation made last, once."""
        result, self._result = self._result, None
        return result

    def check(self) -> None:
        """There is no process that could die."""

    def close(self) -> None:
        """Close the environments."""
        self._vector.close()


def report(system: System, evaluation: Evaluation) -> None:
    """An evaluation to the loggers."""
    best = ", the best so far" if evaluation.best else ""
    system.loggers.event(
        f"evaluation at {evaluation.frames} frames: return {evaluation.mean:.1f} +- {evaluation.std:.1f} over "
        f"{len(evaluation.returns)} greedy episodes{best}",
        role="evaluator",
    )
    system.loggers.write(
        {
            "frames": evaluation.frames,
            "wall_s": evaluation.taken_at - system.telemetry.start,
            "eval_return_mean": evaluation.mean,
            "eval_return_std": evaluation.std,
            "eval_episodes": len(evaluation.returns),
            "eval_length_mean": float(np.mean(evaluation.lengths)),
            "eval_s": evaluation.seconds,
        }
    )


def reached(config: Config, evaluation: Evaluation) -> bool:
    """Whether the run may end with this evaluation."""
    return config.evaluator.stop_at_return is not None and evaluation.mean >= config.evaluator.stop_at_return


def final_evaluation(system: System) -> dict[str, Any]:
    """Fresh greedy episodes of the last and of the best policy; ``eval_*`` is the best one's.

    "Best" was chosen by the run's evaluations, on other episodes: its figure here is not the maximum it was chosen by.
    """
    config, folder, results = system.config, system.run_dir, {}
    policy = evaluating.Policy(config, system.spec)
    last = checkpoint.load(folder / "checkpoints" / "last_policy.pt")
    if not (folder / "best" / "policy.pt").exists():  # no evaluation was asked for during the run
        checkpoint.write_aside(last, folder / "best" / "policy.pt")
    best = checkpoint.load(folder / "best" / "policy.pt")
    for name, kept in (("last", last), ("best", best)):
        policy.load(kept["weights"])
        vector = envs.make(config.env, min(config.evaluator.num_envs, config.evaluator.final_episodes))
        seed = config.seed * collecting.SEEDS_PER_RUN + evaluating.SEED_OFFSET + config.evaluator.num_envs
        results[name] = evaluating.evaluate(policy, vector, config.evaluator.final_episodes, seed)[0]
        vector.close()
        system.loggers.event(
            f"final evaluation, {name} policy: return {np.mean(results[name]):.1f} +- {np.std(results[name]):.1f} over "
            f"{len(results[name])} greedy episodes",
            role="evaluator",
        )
    return {
        "eval_return_mean": float(np.mean(results["best"])), "eval_return_std": float(np.std(results["best"])),
        "eval_episodes": len(results["best"]), "eval_last_return_mean": float(np.mean(results["last"])),
    }  # fmt: skip


# ------------------------------------------------------------------ building


def build(
    config: Config, run_dir: Path, spec: EnvSpec, device: torch.device, streams: StreamLayout, scratch: Path,
    loggers: Loggers, stop: StopSignals,
) -> System:  # fmt: skip
    """Build every part that lives in this process; :meth:`System.start` starts the others."""
    algorithm = ALGORITHMS[config.algorithm.name](config.algorithm, config.learner, spec)
    board = ControlBoard(streams.num_workers, streams.num_streams)
    board.command[0] = RUN
    storage = open_storage(spec, streams, scratch)
    sampler = StreamSampler(
        board.cursor, streams, ahead=config.algorithm.n_step, behind=spec.stack - 1, seed=config.seed
    )
    replay = StreamReplay(
        spec, storage, sampler, config.algorithm.gamma, config.algorithm.n_step, config.learner.batch_size,
        pin_memory=device.type == "cuda",
    )  # fmt: skip
    learner = Learner(algorithm, config.learner, config.algorithm, device)
    weights_board = WeightsBoard(sum(w.numel() for w in ordered_leaves(learner.weights)))
    limiter = Limiter(
        config.budget_frames, config.learner.warmup_frames, config.schedule.frames_per_update,
        config.schedule.tolerance_frames,
    )  # fmt: skip
    telemetry = Telemetry(config, board, streams.rows)
    return System(
        config, run_dir, spec, device, board, weights_board, replay, learner, limiter, telemetry, loggers, stop
    )


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


def flat_weights(learner: Learner) -> torch.Tensor:
    """The learner's weights of now, float32 [numel] on the CPU, in the boards' order."""
    return torch.cat([w.reshape(-1) for w in ordered_leaves(learner.weights)]).cpu()


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


def _exit_words(exitcode: int) -> str:
    return f"signal {signal.Signals(-exitcode).name}" if exitcode < 0 else f"exit code {exitcode}"
