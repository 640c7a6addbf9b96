"""The configuration of a run: frozen dataclasses, one section for each part.

Nothing here imports torch, so that a wrong key is refused before seconds of imports. compose.py makes a `Config` of a
command line, validation.py refuses wrong ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, cast

from trainer.config.algorithms import AlgorithmConfig, AnyAlgorithmConfig, DQNConfig
from trainer.config.fields import number, one_of, part
from trainer.config.machine import available_cores
from trainer.config.registries import EXPLORATIONS, LEARNING_RATES, OPTIONAL_LOGGERS
from trainer.config.schedules import SCHEDULES, Schedule
from trainer.envs.backends import BACKENDS, PREPROCESSING, SCREEN_SIZE, VECTORIZATION, known_backend

# Beside the package, in a clone as in an installation, whatever the working folder holds.
CONFIG_DIR = Path(__file__).resolve().parent.parent / "configs"


GAMES_PER_ROUND = 4  # of a worker, where the schedule has rounds


@dataclass(frozen=True)
class EnvConfig:
    """The environment, and how it is wrapped."""

    id: str = "CartPole-v1"  # or package.module:function, which makes one environment
    backend: str = part(*BACKENDS)
    kwargs: dict[str, Any] = field(default_factory=dict)  # handed to the environment's constructor
    # Around each environment, the first one innermost: package.module:function, or with arguments
    # {wrapper: package.module:function, NAME: VALUE}.
    wrappers: list[Any] = field(default_factory=list)
    # Argument of the constructor that gets the instance's number, another one for each environment of a run: a port,
    # a display, a worker id. They begin with first_instance.
    instance_key: str | None = None
    first_instance: int = number(0, 0, 10**9)
    import_modules: list[str] = field(default_factory=list)  # packages that register the id when imported
    preprocessing: str = one_of(*PREPROCESSING)
    # atari: frames of so many pixels square; 42 makes an update 9 times cheaper.
    screen_size: int = number(SCREEN_SIZE, 8, 1_024, (36, 256))
    frame_stack: int = number(1, 1, 256, (1, 16))  # frames that the policy sees at once; stored once each
    vectorization: str = one_of(*VECTORIZATION)  # sync: in this process; native: its vector_entry_point
    max_episode_steps: int | None = number(None, 1, 10**9, (1, 10**7))  # None keeps the environment's own limit
    mask_key: str = "action_mask"  # the environment's name for the action mask, in its observation or info
    clip_rewards: bool = False  # train on the sign of the reward; returns are reported unclipped


@dataclass(frozen=True)
class CollectorConfig:
    """Collection: processes, sub-environments, exploration."""

    num_workers: int | None = number(None, 1, 4_096)  # None: cores - 2, at least 1
    envs_per_worker: int = number(16, 1, 65_536, (1, 4_096))
    exploration: str = part(*EXPLORATIONS, call="section num_streams streams", kwargs="exploration_kwargs")
    exploration_kwargs: dict[str, Any] = field(default_factory=dict)  # further arguments of an exploration of one's own
    epsilon_start: float = number(1.0, 0.0, 1.0)
    epsilon_end: float = number(0.05, 0.0, 1.0)
    epsilon_decay_frames: int = number(10_000, 0, 10**12)
    # Horgan et al. 2018: epsilon_i = apex_epsilon ** (1 + i / (N - 1) * apex_alpha).
    apex_epsilon: float = number(0.4, 0.0, 1.0)
    apex_alpha: float = number(7.0, 0.0, 1_000.0, (0.0, 20.0))


@dataclass(frozen=True)
class ReplayConfig:
    """The shared replay."""

    capacity_frames: int = number(50_000, 1, 10**10)
    # Drawn with probability in proportion to priority ** alpha; 0 is uniform.
    priority_alpha: float = number(0.5, 0.0, 10.0, (0.0, 1.0))
    priority_beta: float = number(0.4, 0.0, 1.0)  # importance weights are (N P) ** -beta over the batch's largest ...
    priority_beta_end: float = number(1.0, 0.0, 1.0)  # ... linearly to this over the budget
    priority_eps: float = number(1e-6, 1e-12, 1e3, (1e-9, 1.0))  # added to a TD error
    # Of a new row: the largest so far, or (dqn, apex, qrdqn) the TD error of the values that the collector acted by.
    initial_priority: str = one_of("max", "collector")
    scratch_dir: str | None = None  # None: RUN/scratch
    # A Minari dataset, by its id or its folder, whose rows are in the replay when training begins.
    start_from: str | None = None


@dataclass(frozen=True)
class LearnerConfig:
    """Updates."""

    device: str = "auto"  # auto | cpu | cuda | cuda:N
    batch_size: int = number(128, 1, 2**20, (1, 65_536))
    learning_rate: float = number(2.5e-4, 1e-12, 1.0, (1e-6, 0.1))
    # Over the budget; auto: linear where learning_rate_end is set, else constant.
    learning_rate_schedule: str = part("auto", *LEARNING_RATES, call="optimizer start end")
    learning_rate_end: float | None = number(None, 0.0, 1.0, (0.0, 0.1))  # of linear and cosine; None: 0
    learning_rate_warmup_updates: int = number(0, 0, 10**7)  # in which it rises linearly from nearly 0
    adam_eps: float = number(1e-8, 1e-20, 1.0, (1e-12, 0.01))
    max_grad_norm: float | None = number(10.0, 1e-6, 1e12, (1e-3, 1e12))
    warmup_frames: int = number(1_000, 1, 10**10)  # frames that are stored before the first update
    execution: str = one_of("auto", "eager", "trace", "compile")
    precision: str = one_of("float32", "bfloat16")  # bfloat16: autocast of the networks
    channels_last: bool = True  # memory format of convolutions
    # Batches gathered at once, at most; priorities within them are as old as they are many.
    prefetch_batches: int = number(16, 1, 1_024, (1, 256))
    # A thread gathers the next ones while updates are made on these; in rounds those of the same round. In CartPole's
    # async, beside other work, that took 5 to 11 % off the learner's thread; the process used 4 % less to 6 % more CPU.
    prefetch: bool = False
    publish_every_updates: int = number(10, 1, 10**9)
    num_threads: int = number(1, 1, 1_024)
    deterministic: bool = False  # operations that give the same bits each time, on GPUs too, where they are slower


@dataclass(frozen=True)
class ScheduleConfig:
    """How collection and learning take turns."""

    name: str = one_of(*SCHEDULES)
    # 1 / replay ratio: 10 frames for each update are a replay ratio of 0.1. None: no limit on either side (async only).
    frames_per_update: float | None = number(10.0, 1e-3, 1e9, (0.01, 1e9))
    # In its place: finished episodes for each update, in all environments.
    episodes_per_update: float | None = number(None, 1e-4, 1e9, (1e-3, 1e9))
    # How far collection may run ahead of learning; None: 2 steps of all, at least 512.
    tolerance_frames: int | None = number(None, 1, 10**12)
    # sync, sequential: frames between two phases of learning; None: about 1,024.
    frames_per_round: int | None = number(None, 1, 10**10)
    # sync, sequential: instead, this many episodes a worker; None: 4 for games.
    episodes_per_round: int | None = number(None, 1, 10**6)
    # shared_gradient: local agents, each a process that acts, learns and applies its gradients.
    num_agents: int = number(2, 1, 1_024)
    application: str = one_of("locked", "hogwild")  # shared_gradient: one at a time, or whenever and losing some
    applier: str = one_of("auto", "local", "device")  # shared_gradient: each by itself, or one on learner.device
    # sync, sequential: None follows frames_per_update, or for games in rounds of episodes makes one for each episode
    updates_per_round: int | None = number(None, 1, 10**9)

    @property
    def kind(self) -> Schedule:
        """The schedule of this name."""
        return SCHEDULES[self.name]


@dataclass(frozen=True)
class EvaluatorConfig:
    """Evaluation: greedy episodes during the training."""

    every_frames: int = number(5_000, 0, 10**12)  # 0: only at the end
    episodes: int = number(20, 1, 10**6, (1, 20_000))
    final_episodes: int = number(100, 1, 10**6, (1, 20_000))
    num_envs: int = number(20, 1, 16_384, (1, 4_096))
    # A video of the first evaluation and of every n-th after it; 0: none.
    video_every: int = number(0, 0, 10**9)
    nice: int = number(10, 0, 19)  # the evaluator's process gives way to collection and learning
    # self-play: of each pair in the league at the end; 0: no league.
    league_games: int = number(20, 0, 10**5, (0, 1_000))
    # An episode is cut there, as a greedy policy may circle for ever; None: never.
    max_episode_steps: int | None = number(27_000, 1, 10**9)
    # Of the final evaluation, and of the league; None: as long as the training took, at least 60 s.
    final_max_seconds: float | None = number(None, 0.01, 1e7)
    stop_at_return: float | None = number(None, -1e12, 1e12)  # the run ends when an evaluation's mean reaches this


@dataclass(frozen=True)
class AgentsConfig:
    """Where several agents of one world learn; one agent alone learns in the main process."""

    learner: str = one_of("stacked", "process", "sequential")  # alike ones in one update; a process each; one by one
    overrides: dict[str, Any] = field(default_factory=dict)  # agent -> section -> key -> its own value
    frozen: list[str] = field(default_factory=list)  # agents that act but do not learn
    start_from: dict[str, str] = field(default_factory=dict)  # agent -> policy.pt of another run
    # A learner process without a sign of life for this time is restarted.
    hang_seconds: float = number(60.0, 0.1, 1e9, (1.0, 86_400.0))


@dataclass(frozen=True)
class OpponentsConfig:
    """Whom an agent plays turn-based games against: how often each kind is drawn for a seat and an episode."""

    random: float = number(0.2, 0.0, 1e6)
    scripted: float = number(0.0, 0.0, 1e6)  # the game's heuristic or perfect player, where there is one
    latest: float = number(0.3, 0.0, 1e6)  # the agent itself, by its newest weights
    snapshots: float = number(0.5, 0.0, 1e6)  # its past selves; as latest until there is one
    checkpoints: float = number(0.0, 0.0, 1e6)  # policies of other runs: checkpoint_paths
    # None keeps it constant; else moves linearly to this over the budget; so do all.
    random_end: float | None = number(None, 0.0, 1e6)
    scripted_end: float | None = number(None, 0.0, 1e6)
    latest_end: float | None = number(None, 0.0, 1e6)
    snapshots_end: float | None = number(None, 0.0, 1e6)
    checkpoints_end: float | None = number(None, 0.0, 1e6)
    checkpoint_paths: list[str] = field(default_factory=list)  # a policy.pt or a snapshot each
    start_from: str | None = None  # policy.pt of another run that is the first snapshot
    both_seats: bool = True  # learn from the other seat's decisions too where latest sits there
    snapshot_every_frames: int = number(50_000, 1, 10**12)
    pool_size: int = number(20, 1, 10**4, (1, 1_000))  # most snapshots; a new one replaces the oldest
    # Snapshots that a worker plays against at a time; one of them is replaced when its games are over.
    active: int = number(4, 2, 10**4, (2, 100))
    sampling: str = one_of("uniform", "last", "pfsp")
    last_k: int = number(5, 1, 10**4)  # last: the newest so many
    epsilon: float = number(0.05, 0.0, 1.0, (0.0, 0.5))  # random moves of latest and snapshots
    scripted_player: str = part("auto")  # auto: the game's; or package.module:function
    evaluate_against: str = part("random", "scripted")


@dataclass(frozen=True)
class CheckpointConfig:
    """Checkpoints."""

    save_every_seconds: float = number(300.0, 0.01, 1e9, (0.1, 86_400.0))
    keep_last: int = number(2, 1, 10**6, (1, 1_000))
    # Frames between two policies that are kept for good in RUN/checkpoints/policies; 0: none is.
    policy_every_frames: int = number(0, 0, 10**12)
    replay: bool = True  # keep the replay's rows too; without them a resumed run first fills an empty replay


@dataclass(frozen=True)
class FaultsConfig:
    """Failures that a run survives. A worker that dies or hangs is restarted, and the evaluator if it dies."""

    # Most failures of one process within the period; with more the run ends.
    max_failures: int = number(5, 0, 10**9)
    period_seconds: float = number(600.0, 0.1, 1e9)
    # A worker without a sign of life for this time is killed.
    hang_seconds: float = number(120.0, 0.1, 1e9, (1.0, 86_400.0))
    # A worker with more memory than this is replaced, as an environment may leak.
    worker_memory_mb: int | None = number(None, 64, 10**8, (256, 10**8))


@dataclass(frozen=True)
class LoggerConfig:
    """Loggers. JSONL, CSV, the text log and the terminal are always on."""

    name: str = part("none", *OPTIONAL_LOGGERS, call="section run notify")
    every_seconds: float = number(1.0, 0.01, 1e9, (0.1, 3_600.0))
    # Keys of `info` whose value at an episode's end is logged, a.b for info["a"]["b"]; None: every scalar.
    info_keys: list[str] | None = None
    terminal: str = one_of("auto", "live", "plain", "none")
    wandb_project: str = "trainer"
    wandb_entity: str | None = None
    wandb_group: str | None = None
    wandb_mode: str = one_of("auto", "online", "offline", "disabled")
    wandb_tags: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class TelemetryConfig:
    """What is recorded besides metrics."""

    trace: bool = False  # RUN/trace.json, for ui.perfetto.dev: what every process did when
    trace_events: int = number(20_000, 1, 10**7, (100, 10**6))  # that each process keeps of it, the last ones


@dataclass(frozen=True)
class Config:
    """One run."""

    preset: str = "cartpole"
    seed: int = number(0, 0, 2**63)
    budget_frames: int = number(50_000, 1, 10**12 - 1, (1, 10**10))
    run_dir: str | None = None  # None: runs/<date>_<time>_<env>_<algorithm>_<seed>
    resume: str | None = None  # a run's folder to go on in; auto: run_dir, where that holds a run
    # Called while the run goes on (docs/python.md): package.module:object, or with arguments
    # {callback: package.module:function, NAME: VALUE}.
    callbacks: list[Any] = field(default_factory=list)
    env: EnvConfig = field(default_factory=EnvConfig)
    # The section of the algorithm that was chosen; until it is known which, the keys of all of them.
    algorithm: AlgorithmConfig = field(default_factory=DQNConfig, metadata={"keys": AnyAlgorithmConfig})
    collector: CollectorConfig = field(default_factory=CollectorConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    evaluator: EvaluatorConfig = field(default_factory=EvaluatorConfig)
    agents: AgentsConfig = field(default_factory=AgentsConfig)
    opponents: OpponentsConfig = field(default_factory=OpponentsConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    faults: FaultsConfig = field(default_factory=FaultsConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig)
    telemetry: TelemetryConfig = field(default_factory=TelemetryConfig)


def config_keys(config: Any = Config, prefix: str = "") -> dict[str, Any]:
    """Every dotted key of a configuration, as `learner.batch_size`, with its value; of a class, with its field.

    Of the class these are the keys of all algorithms, of a configuration those of its own.
    """
    found: dict[str, Any] = {}
    for item in fields(config):
        is_type = isinstance(config, type)
        section = item.metadata.get("keys", item.default_factory) if is_type else getattr(config, item.name)
        if is_dataclass(section):
            found |= config_keys(section, f"{prefix}{item.name}.")
        else:
            found[prefix + item.name] = item if is_type else section
    return found


def group_options(group: str, folders: tuple[Path, ...] = ()) -> tuple[str, ...]:
    """Names that `group=NAME` takes: the files of configs/<group>/ and of the user's folders, sorted."""
    return tuple(sorted({path.stem for folder in (CONFIG_DIR, *folders) for path in (folder / group).glob("*.yaml")}))


def resolve(config: Config, cores: int | None = None) -> Config:
    """The configuration with every value filled in that depends on the machine.

    Of `cores` (None: `available_cores`), two are left to the learner and the evaluator.
    """
    collector, schedule = config.collector, config.schedule
    if schedule.kind.local_agents:
        collector = replace(collector, num_workers=1)  # of each
    if collector.num_workers is None:
        workers = max(1, (available_cores() if cores is None else cores) - 2)
        collector = replace(collector, num_workers=workers)
    step = max(1, cast(int, collector.num_workers) * collector.envs_per_worker)  # frames of one step of all workers
    if schedule.tolerance_frames is None:
        schedule = replace(schedule, tolerance_frames=max(512, 2 * step))
    if known_backend(config.env.backend).is_game and schedule.kind.repeatable:
        schedule = _rounds_of_games(schedule, cast(int, collector.num_workers))
    if schedule.frames_per_round is None and schedule.episodes_per_round is None:
        steps = schedule.kind.round_steps or max(1, round(1_024 / step))
        schedule = replace(schedule, frames_per_round=steps * step)
    return replace(config, collector=collector, schedule=schedule)


def _rounds_of_games(schedule: ScheduleConfig, num_workers: int) -> ScheduleConfig:
    """Rounds of 4 games a worker, and one update for each game, unless something else was asked for."""
    if schedule.frames_per_round is None and schedule.episodes_per_round is None:
        schedule = replace(schedule, episodes_per_round=GAMES_PER_ROUND)
    if (
        schedule.episodes_per_round is not None
        and schedule.updates_per_round is None
        and schedule.episodes_per_update is None
    ):
        schedule = replace(schedule, updates_per_round=num_workers * schedule.episodes_per_round)
    return schedule
