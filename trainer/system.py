"""Builds a run's parts, starts and stops its processes, and trains.

The way of a transition: ``processes/collector.py`` -> ``replay.py`` -> ``processes/learner.py``; weights go back by
``update_policy_weights_``. Everything between processes is shared memory that nobody locks (``boards.py``, ``replay.py``).
"""

from __future__ import annotations

import copy
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.multiprocessing as mp
from torchrl.collectors import MultiAsyncCollector

import envs
from envs import EnvError, EnvSpec
from trainer import checkpoint, plot, run_folder
from trainer.algorithms import ALGORITHMS
from trainer.boards import RUN, STOP, ControlBoard, WeightsBoard, ordered_leaves
from trainer.config import Config, ConfigError, to_dict
from trainer.limiter import Limiter
from trainer.loggers import Loggers, RunInfo, open_loggers
from trainer.metrics import Every, EverySeconds
from trainer.processes import collector as collecting
from trainer.processes import evaluator as evaluating
from trainer.processes.evaluator import Evaluation
from trainer.processes.learner import Learner, NotFinite, feed, linear
from trainer.replay import StreamLayout, StreamReplay, StreamSampler, layout, open_storage, row_bytes
from trainer.resources import check_fits
from trainer.telemetry import Telemetry

IDLE_S = 2e-4  # between two looks of a learner that has nothing due
SUPERVISE_EVERY_S = 0.1
SHUTDOWN_S = 8.0


class RunFailed(RuntimeError):
    """A run that ended before its budget for no wish of the user's; its text is one sentence for the user."""


@dataclass
class System:
    """A run's parts, all of them started. Whoever holds it calls :meth:`close`."""

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
    collector: MultiAsyncCollector | None  # None in the schedule `sequential`
    rollouts: list[collecting.Rollout]  # virtual workers of `sequential`
    evaluator: RemoteEvaluator | LocalEvaluator
    stop_signal: int = 0  # set by the signal handler

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
        """Raise if a process died. Cheap enough for every wait."""
        for worker, process in enumerate(self.collector.procs if self.collector is not None else ()):
            if process.exitcode is not None:
                self._name_death(worker, process.exitcode)
        self.evaluator.check()

    def _name_death(self, worker: int, exitcode: int) -> None:
        text = self.board.read_error(worker)
        own = self.config.collector.envs_per_worker
        what = text.strip().splitlines()[-1] if text else f"it was ended by {_exit_words(exitcode)}"
        if text:
            self.loggers.event(f"traceback of collector worker {worker}:\n{text}", role=f"collector {worker}")
        raise RunFailed(
            f"collector worker {worker} (pid {self.board.pid[worker]}, {own} x {self.spec.id}, seeds from "
            f"{self.config.seed * collecting.SEEDS_PER_RUN + worker * own}) died after "
            f"{self.board.frames[worker]} frames: {what}"
        )

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint holds: weights, target, optimiser, counters, schedules and random states."""
        return {
            "learner": self.learner.state_dict(),
            "limiter": self.limiter.state_dict(),
            "sampler": self.replay._sampler.state_dict(),
            "frames": self.board.total_frames(),
            "episodes": self.telemetry.episodes.state_dict(),
            "torch_rng": torch.get_rng_state(),
            "seed": self.config.seed,
        }

    def save(self) -> Path:
        """A checkpoint, written aside and renamed."""
        frames = self.board.total_frames()
        return checkpoint.save(
            self.run_dir / "checkpoints", self.state_dict(), frames, self.config.checkpoint.keep_last
        )

    def close(self) -> None:
        """Stop every process and remove the replay's files. Safe to call twice, and after any failure."""
        self.board.command[0] = STOP
        self.evaluator.close()
        if self.collector is not None:
            self.collector.shutdown(timeout=SHUTDOWN_S, raise_on_error=False)
            self.collector = None
        for rollout in self.rollouts:
            rollout.vector.close()
        self.rollouts = []
        torch.set_num_threads(self.config.learner.num_threads)


def train(config: Config, command: list[str]) -> dict[str, Any]:
    """Train as ``config`` says and return what RUN/summary.json holds.

    Args:
        config: validated, with every None resolved.
        command: the command line, for the run's folder.

    Raises:
        ConfigError, EnvError: nothing was started.
        RunFailed: a process died or the loss was not finite; a checkpoint was saved, everything is stopped.
    """
    torch.set_num_threads(config.learner.num_threads)
    torch.manual_seed(config.seed)
    spec = envs.describe(config.env)
    device = choose_device(config.learner.device)
    run_dir, config = run_folder.create(config, command)
    streams = layout(config.replay.capacity_frames, config.collector.num_workers, config.collector.envs_per_worker)
    scratch = Path(config.replay.scratch_dir or run_dir / "scratch") / f"replay_{os.getpid()}"
    scratch.mkdir(parents=True)
    info = RunInfo(
        run_dir, config.env.id, config.algorithm.name, config.seed, config.budget_frames, to_dict(config),
        streams.num_workers, streams.num_streams, str(device),
    )  # fmt: skip
    loggers = open_loggers(config.logger, info)
    summary: dict[str, Any] = {"status": "failed", "reason": "it could not be started"}
    start = time.monotonic()
    try:
        fits = check_fits(row_bytes(spec) * streams.rows, scratch, streams.num_workers, shared_bytes=2**24)
        loggers.event(f"run folder {run_dir}; {fits}")
        system = build(config, run_dir, spec, device, streams, scratch, loggers)
        try:
            summary = _train(system)
        finally:
            system.close()
        if summary["status"] == "finished":
            summary |= final_evaluation(config, spec, run_dir, system.learner, loggers)
        return summary
    except (RunFailed, ConfigError, EnvError) as error:
        summary |= {"status": "failed", "reason": str(error)}
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        summary = {
            "env_id": config.env.id, "algorithm": config.algorithm.name, "seed": config.seed, "preset": config.preset,
            "total_s": time.monotonic() - start, **summary,
        }  # fmt: skip
        run_folder.write_json(run_dir / "summary.json", summary)
        plot.curve(run_dir)
        loggers.close(summary)


def _train(system: System) -> dict[str, Any]:
    """The training loop: a schedule collects and learns, everything else happens when its time has come."""
    config, board, learner = system.config, system.board, system.learner
    evaluate_every, save_every = (
        Every(config.evaluator.every_frames),
        EverySeconds(config.checkpoint.save_every_seconds),
    )
    log_every, supervise_every = EverySeconds(config.logger.every_seconds), EverySeconds(SUPERVISE_EVERY_S)
    solved: Evaluation | None = None
    status, reason, start = "finished", "the budget is used up", time.monotonic()
    with _signals(system):
        try:
            system.publish()
            for _ in SCHEDULES[config.schedule.name](system):
                frames = board.total_frames()
                if supervise_every.crossed():
                    system.check()
                    learner.set_learning_rate(
                        linear(
                            config.learner.learning_rate,
                            config.learner.learning_rate_end,
                            frames / config.budget_frames,
                        )
                    )
                if evaluate_every.crossed(frames):
                    system.evaluator.request(frames)
                if evaluation := system.evaluator.poll():
                    report(system, evaluation)
                    solved = evaluation if reached(config, evaluation) else None
                if log_every.crossed():
                    system.loggers.write(system.telemetry.row(learner.updates, learner.metrics()))
                if save_every.crossed():
                    system.save()
                if solved:
                    reason = f"evaluator.stop_at_return={config.evaluator.stop_at_return:g} was reached"
                    break
                if system.stop_signal:
                    status, reason = "stopped", f"signal {signal.Signals(system.stop_signal).name}"
                    break
            wall_s = time.monotonic() - start
            learner.check()
        except NotFinite as error:
            raise RunFailed(f"{error} (the last good weights are in {system.save()})") from error
        except (RunFailed, EnvError) as error:
            raise RunFailed(f"{error} (checkpoint: {system.save()})") from error
        system.save()
        row = system.telemetry.row(learner.updates, learner.metrics())
        system.loggers.write(row)
    frames = board.total_frames()
    return {
        "status": status, "reason": reason, "frames": frames, "updates": learner.updates, "wall_s": wall_s,
        "frames_per_s": frames / wall_s, "updates_per_s": learner.updates / wall_s, "episodes": row["episodes"],
        "return_mean": row["return_mean"], "redrawn_rows": system.replay.redrawn,
        "solved_s": solved and solved.taken_at - start, "solved_frames": solved and solved.frames,
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
        while (board.rounds_done < board.round[0]).any() and not system.stop_signal:
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
    while board.total_frames() < config.budget_frames and not system.stop_signal:
        board.schedule_frames[0] = board.total_frames()  # exploration does not depend on who is faster
        collect()
        yield
        frames = board.total_frames()
        due = limiter.due(frames)
        if config.schedule.updates_per_round is not None:
            due = config.schedule.updates_per_round if frames >= config.learner.warmup_frames else 0
        while due > 0 and not system.stop_signal:
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
        self._weights = torch.cat([w.reshape(-1) for w in ordered_leaves(learner.weights)]).cpu().share_memory_()
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
        weights = [w.reshape(-1) for w in ordered_leaves(self._learner.weights)]
        self._weights.copy_(torch.cat(weights))
        self._pipe.send((self._wanted, time.monotonic()))
        self._busy, self._wanted = True, -1

    def poll(self) -> Evaluation | None:
        """A finished evaluation, if there is one."""
        if not self._busy or not self._pipe.poll():
            return None
        answer = self._pipe.recv()
        if isinstance(answer, str):
            raise RunFailed(f"the evaluator failed: {answer.strip().splitlines()[-1]}")
        self._busy = False
        self._send()
        return answer

    def check(self) -> None:
        """Raise if the process died."""
        if self._process.exitcode is not None and not self._pipe.poll():
            raise RunFailed(f"the evaluator was ended by {_exit_words(self._process.exitcode)}")

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
        self._policy.load(torch.cat([w.reshape(-1).cpu() for w in ordered_leaves(self._learner.weights)]))
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


def final_evaluation(
    config: Config, spec: EnvSpec, run_dir: Path, learner: Learner, loggers: Loggers
) -> dict[str, Any]:
    """Fresh greedy episodes of the last and of the best policy; ``eval_*`` is the best one's.

    "Best" was chosen by the evaluations of the run on other episodes, so its figure here is not the maximum of its own choice.
    """
    policy, results = evaluating.Policy(config, spec), {}
    last = torch.cat([w.reshape(-1).cpu() for w in ordered_leaves(learner.weights)])
    evaluating.save_policy(run_dir / "checkpoints" / "last_policy.pt", last, 0, float("nan"))
    if not (run_dir / "best" / "policy.pt").exists():  # no evaluation was asked for during the run
        evaluating.save_policy(run_dir / "best" / "policy.pt", last, 0, float("nan"))
    best = checkpoint.load(run_dir / "best" / "policy.pt")["weights"]
    for name, weights in (("last", last), ("best", best)):
        policy.load(weights)
        vector = envs.make(config.env, min(config.evaluator.num_envs, config.evaluator.final_episodes))
        seed = config.seed * collecting.SEEDS_PER_RUN + evaluating.SEED_OFFSET + config.evaluator.num_envs
        results[name] = evaluating.evaluate(policy, vector, config.evaluator.final_episodes, seed)[0]
        vector.close()
        loggers.event(
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
    loggers: Loggers,
) -> System:  # fmt: skip
    """Build every part and start every process, unless the schedule is ``sequential``."""
    algorithm = ALGORITHMS[config.algorithm.name](config.algorithm, config.learner, spec)
    policy = copy.deepcopy(algorithm.policy)  # TorchRL moves a policy it gets into shared memory (torchrl.md, trap 5)
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
    plans = [collecting.CollectorPlan(config, spec, streams, worker) for worker in range(streams.num_workers)]
    if config.schedule.name == "sequential":
        evaluator: RemoteEvaluator | LocalEvaluator = LocalEvaluator(config, spec, run_dir, learner)
        collector, rollouts = None, [_virtual_worker(plan, board, weights_board, replay) for plan in plans]
    else:
        use_fork_server()
        evaluator, rollouts = RemoteEvaluator(config, spec, run_dir, learner), []
        collector = start_collectors(plans, board, weights_board, replay, policy)
    torch.set_num_threads(config.learner.num_threads)  # TorchRL changed it (torchrl.md, trap 18)
    return System(
        config, run_dir, spec, device, board, weights_board, replay, learner, limiter, telemetry, loggers, collector,
        rollouts, evaluator,
    )  # fmt: skip


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
    multiprocessing.set_forkserver_preload(["trainer.processes.collector", "trainer.processes.evaluator"])
    mp.set_start_method("forkserver", force=True)  # importing torchrl has set spawn


def start_collectors(
    plans: list[collecting.CollectorPlan], board: ControlBoard, weights_board: WeightsBoard, replay: StreamReplay,
    policy: Any,
) -> MultiAsyncCollector:  # fmt: skip
    """The collector processes, running.

    Raises:
        EnvError: an environment could not be built in a worker.
    """
    config, spec = plans[0].config, plans[0].spec
    collector = MultiAsyncCollector(
        [collecting.make_environment] * len(plans),
        create_env_kwargs=[{"plan": plan, "board": board} for plan in plans],
        policy=policy,
        policy_factory=partial(collecting.make_policy, config, spec),
        frames_per_batch=config.collector.envs_per_worker,
        total_frames=-1,
        replay_buffer=replay,
        extend_buffer=False,
        collector_class=collecting.StreamCollector,
        weight_sync_schemes={"policy": weights_board},
    )
    collector.start()
    return collector


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


class _signals:
    """Within it, SIGINT and SIGTERM ask the loop to end; a second one ends the process at once."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle)

    def _handle(self, number: int, _: object) -> None:
        if self._system.stop_signal:
            os._exit(128 + number)  # the children follow
        self._system.stop_signal = number

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def _exit_words(exitcode: int) -> str:
    return f"signal {signal.Signals(-exitcode).name}" if exitcode < 0 else f"exit code {exitcode}"
