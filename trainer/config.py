"""The configuration of a run: frozen dataclasses, one section for each part, validated once at the border.

Nothing here imports torch, so that a wrong key is refused before seconds of imports.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class EnvConfig:
    """Which environment is trained on, and how it is wrapped."""

    id: str = "CartPole-v1"
    backend: str = "gymnasium"  # gymnasium | envpool | counting
    kwargs: dict[str, Any] = field(default_factory=dict)  # handed to the environment's constructor
    import_modules: list[str] = field(default_factory=list)  # packages that register the id when imported
    preprocessing: str = "none"  # none | atari
    frame_stack: int = 1  # frames that the policy sees at once; stored once each
    vectorization: str = "auto"  # auto | sync (in-process sub-environments) | native (its vector_entry_point)
    max_episode_steps: int | None = None  # None keeps the environment's own limit
    clip_rewards: bool = False  # train on the sign of the reward; returns are reported unclipped


@dataclass(frozen=True)
class AlgorithmConfig:
    """What is learned: the loss, its target and the network."""

    name: str = "dqn"
    gamma: float = 0.99
    n_step: int = 1
    double: bool = True
    loss_function: str = "smooth_l1"  # smooth_l1 | l2
    target_update_every_updates: int = 100  # hard updates; ignored when target_tau is set
    target_tau: float | None = None  # soft updates after every update: target += tau * (online - target)
    hidden_sizes: list[int] = field(default_factory=lambda: [120, 84])
    activation: str = "relu"  # relu | tanh | silu
    cnn: str = "auto"  # encoder of image leaves: auto | nature | small


@dataclass(frozen=True)
class CollectorConfig:
    """Who plays: processes, sub-environments, exploration."""

    num_workers: int | None = None  # None: cores - 2, at least 1
    envs_per_worker: int = 16
    steps_per_rollout: int = 16  # vector steps between two looks at TorchRL's control pipe
    exploration: str = "linear"  # linear | apex
    epsilon_start: float = 1.0
    epsilon_end: float = 0.05
    epsilon_decay_frames: int = 10_000
    apex_epsilon: float = 0.4  # Horgan et al. 2018: epsilon_i = apex_epsilon ** (1 + i / (N - 1) * apex_alpha)
    apex_alpha: float = 7.0


@dataclass(frozen=True)
class ReplayConfig:
    """The shared replay."""

    capacity_frames: int = 50_000
    scratch_dir: str | None = None  # None: RUN/scratch


@dataclass(frozen=True)
class LearnerConfig:
    """How updates are made."""

    device: str = "auto"  # auto | cpu | cuda | cuda:N
    batch_size: int = 128
    learning_rate: float = 2.5e-4
    learning_rate_end: float | None = None  # None keeps it constant; else falls linearly over the budget
    adam_eps: float = 1e-8
    max_grad_norm: float | None = 10.0
    warmup_frames: int = 1_000  # no update before so many frames are stored
    execution: str = "auto"  # auto | eager | trace | compile | cudagraph
    precision: str = "float32"  # float32 | bfloat16 (autocast of the networks)
    channels_last: bool = True  # memory format of convolutions
    prefetch_batches: int = 8  # batches gathered at once
    publish_every_updates: int = 10
    num_threads: int = 1


@dataclass(frozen=True)
class ScheduleConfig:
    """How collection and learning take turns."""

    name: str = "async"  # async | sync | sequential
    frames_per_update: float | None = 10.0  # inverse replay ratio; None: no limit on either side (async only)
    tolerance_frames: int = 512  # how far collection may run ahead of learning, beyond one update's frames
    frames_per_round: int = 1_024  # sync, sequential: frames collected between two phases of learning
    episodes_per_round: int | None = None  # sync, sequential: instead, this many episodes a worker
    updates_per_round: int | None = None  # sync, sequential: None follows frames_per_update


@dataclass(frozen=True)
class EvaluatorConfig:
    """Greedy episodes beside the training."""

    every_frames: int = 5_000  # 0: only at the end
    episodes: int = 20
    final_episodes: int = 100
    num_envs: int = 20
    nice: int = 10  # the evaluator's process gives way to collection and learning
    stop_at_return: float | None = None  # the run ends when an evaluation's mean reaches this


@dataclass(frozen=True)
class CheckpointConfig:
    """What is kept on disk."""

    save_every_seconds: float = 300.0
    keep_last: int = 2


@dataclass(frozen=True)
class LoggerConfig:
    """Where the run is shown. JSONL, CSV and the terminal are always on."""

    name: str = "none"  # none | wandb | tensorboard
    every_seconds: float = 1.0
    terminal: str = "auto"  # auto | live | plain | none
    wandb_project: str = "trainer"
    wandb_entity: str | None = None
    wandb_group: str | None = None
    wandb_mode: str = "auto"  # auto | online | offline | disabled
    wandb_tags: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Config:
    """One run."""

    preset: str = "cartpole"
    seed: int = 0
    budget_frames: int = 50_000
    run_dir: str | None = None  # None: runs/<date>_<time>_<env>_<algorithm>_<seed>
    resume: str | None = None
    env: EnvConfig = field(default_factory=EnvConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    collector: CollectorConfig = field(default_factory=CollectorConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    evaluator: EvaluatorConfig = field(default_factory=EvaluatorConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig)


class ConfigError(ValueError):
    """A configuration that cannot be run; its text is one sentence for the user."""
