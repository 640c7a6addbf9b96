"""The jobs that this trainer and other libraries run, as data.

For each library the batch, replay, learning start, updates per frame, target period, learning rate and exploration are
the same. In all jobs: gamma 0.99, epsilon from 1 to 0.05 over the first half of the run, one-step returns, no double
Q-learning, Adam. Pong has frame skip 4, 84 x 84 grey, 4 frames stacked, rewards as the game gives them. Loss and
clipping are the defaults of Stable-Baselines3: Huber, gradient norm 10.

The jobs with actions in a box are SAC with a learned temperature, twin critics and target networks that follow by 0.005
after every update; the first frames, before learning starts, are uniformly random.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Work:
    """One job. Counts are frames, except batch and buffer, which are transitions.

    Args:
        steps: frames of the run that is compared.
        hidden: widths of the hidden layers; in Pong of those after the Nature CNN.
        batch: of an update.
        buffer: capacity of the replay.
        learning_starts: frames before the first update.
        train_every: one update every so many frames.
        target_every: frames between two hard updates of the target network; SAC has soft ones.
        lr: Adam's.
        algorithm: `dqn` or `sac`.
    """

    steps: int
    hidden: tuple[int, ...]
    batch: int
    buffer: int
    learning_starts: int
    train_every: int
    target_every: int
    lr: float
    algorithm: str = "dqn"


GAMMA, EPSILON_START, EPSILON_END, EPSILON_SHARE = 0.99, 1.0, 0.05, 0.5

WORKS = {
    "CartPole-v1": Work(100_000, (120, 84), 128, 10_000, 10_000, 10, 500, 2.5e-4),
    "LunarLander-v3": Work(20_000, (256, 256), 128, 100_000, 1_000, 4, 500, 5e-4),
    "ALE/Pong-v5": Work(2_500, (512,), 32, 10_000, 1_000, 4, 1_000, 1e-4),
    "Pendulum-v1": Work(4_000, (256, 256), 256, 100_000, 1_000, 1, 0, 3e-4, "sac"),
    "HalfCheetah-v5": Work(4_000, (256, 256), 256, 100_000, 1_000, 1, 0, 3e-4, "sac"),
}
TAU = 0.005


def arguments(env_id: str, steps: int, seed: int, threads: int, envs_per_worker: int, workers: int) -> list[str]:
    """The trainer's `KEY=VALUE` for a job.

    Args:
        env_id: one of `WORKS`.
        steps: frames of the run.
        seed: of the run.
        threads: of the learner.
        envs_per_worker: sub-environments of a collector process.
        workers: collector processes.
    """
    work = WORKS[env_id]
    return [
        *_KEYS[work.algorithm](env_id, work, steps), f"env.id={env_id}", f"seed={seed}", f"budget_frames={steps}",
        "algorithm.n_step=1", f"algorithm.gamma={GAMMA}", f"algorithm.hidden_sizes=[{','.join(map(str, work.hidden))}]",
        f"collector.num_workers={workers}", f"collector.envs_per_worker={envs_per_worker}",
        f"replay.capacity_frames={work.buffer}", f"learner.batch_size={work.batch}", f"learner.learning_rate={work.lr}",
        f"learner.warmup_frames={work.learning_starts}", *_threads(work, threads),
        f"schedule.frames_per_update={work.train_every}",
    ]  # fmt: skip


def _threads(work: Work, threads: int) -> list[str]:
    """SAC's learner takes a second core by its parts, which was faster than two threads of PyTorch."""
    if work.algorithm == "sac" and threads == 2:
        return ["learner.num_threads=1", "learner.parallel_parts=true"]
    return [f"learner.num_threads={threads}", "learner.parallel_parts=false"]


def _dqn(env_id: str, work: Work, steps: int) -> list[str]:
    preset = ["preset=pong", "env.clip_rewards=false"] if env_id.startswith("ALE/") else ["preset=generic"]
    return [
        *preset, "algorithm.double=false", "algorithm.loss_function=smooth_l1", "learner.max_grad_norm=10",
        f"algorithm.target_update_every_updates={work.target_every // work.train_every}",
        f"collector.epsilon_start={EPSILON_START}", f"collector.epsilon_end={EPSILON_END}",
        f"collector.epsilon_decay_frames={round(EPSILON_SHARE * steps)}",
    ]  # fmt: skip


def _sac(env_id: str, work: Work, steps: int) -> list[str]:
    return [
        "preset=continuous", "algorithm=sac", f"algorithm.target_tau={TAU}",
        f"collector.random_frames={work.learning_starts}",
    ]  # fmt: skip


_KEYS = {"dqn": _dqn, "sac": _sac}
