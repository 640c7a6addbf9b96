"""The configuration of a run: frozen dataclasses, one section for each part, validated once at the border.

Nothing here imports torch, so that a wrong key is refused before seconds of imports. compose.py makes a `Config` of
a command line, validation.py refuses the impossible ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, cast

from trainer.reading import ReadError, read_text

# Beside the package, in a clone as in an installation, whatever the working folder holds.
CONFIG_DIR = Path(__file__).resolve().parent.parent / "configs"


GAME_BACKENDS = ("game", "openspiel")  # turn-based games, besides those of PettingZoo
GAMES_PER_ROUND = 4  # of a worker, where the schedule has rounds
SEEDS_PER_RUN = 1_000_000  # environment seeds: run seed * this + stream


class ConfigError(ValueError):
    """A configuration that cannot be run; its text is one sentence for the user."""


def one_of(default: str, *others: str) -> Any:
    """A text field that takes one of a few values, the first of which is its default."""
    return field(default=default, metadata={"choices": (default, *others)})


@dataclass(frozen=True)
class EnvConfig:
    """Which environment is trained on, and how it is wrapped."""

    id: str = "CartPole-v1"
    backend: str = one_of(
        "gymnasium", "envpool", "counting", "counting_agents", "grid", "pettingzoo", "game", "openspiel"
    )  # fmt: skip
    kwargs: dict[str, Any] = field(default_factory=dict)  # handed to the environment's constructor
    import_modules: list[str] = field(default_factory=list)  # packages that register the id when imported
    preprocessing: str = one_of("none", "atari")
    screen_size: int = 84  # atari: frames of so many pixels square; 42 makes an update 9 times cheaper
    frame_stack: int = 1  # frames that the policy sees at once; stored once each
    vectorization: str = one_of("auto", "sync", "native")  # sync: in this process; native: its vector_entry_point
    max_episode_steps: int | None = None  # None keeps the environment's own limit
    clip_rewards: bool = False  # train on the sign of the reward; returns are reported unclipped


@dataclass(frozen=True)
class AlgorithmConfig:
    """What is learned: the loss, its target and the network."""

    name: str = "dqn"  # one of configs/algorithm/
    gamma: float = 0.99
    n_step: int = 1
    double: bool = True  # the online network chooses the next action, the target judges it
    dueling: bool = False  # value and advantage in two heads
    noisy: bool = False  # noisy linear layers explore, in place of epsilon
    noisy_sigma: float = 0.5
    prioritized: bool = False  # draw transitions by TD error; how: replay.priority_*
    loss_function: str = one_of("smooth_l1", "l2")
    value_rescaling: bool = False  # learn h(x) = sign(x) (sqrt(|x| + 1) - 1) + x / 1000 of the return
    num_atoms: int = 51  # c51
    v_min: float = -10.0  # c51: smallest and largest return that can be told apart; values begin at 0 or next to it
    v_max: float = 10.0
    num_quantiles: int = 32  # qrdqn
    num_fractions: int = 8  # iqn: of a transition; as many of its successor
    num_acting_fractions: int = 32  # iqn: evenly spread fractions that acting averages over
    fraction_cosines: int = 64  # iqn: of the embedding
    risk_level: float = 1.0  # iqn: act by the mean of this worst share of returns; 1 is risk-neutral
    munchausen_alpha: float = 0.9  # munchausen: weight of the log-policy added to the reward
    munchausen_temperature: float = 0.03
    munchausen_clip: float = -1.0  # least log-policy term
    target_update_every_updates: int = 100  # hard updates; ignored when target_tau is set
    target_tau: float | None = None  # soft updates after every update: target += tau * (online - target)
    hidden_sizes: list[int] = field(default_factory=lambda: [120, 84])
    activation: str = one_of("relu", "tanh", "silu")
    cnn: str = one_of("auto", "nature", "efficient", "small")  # encoder of image leaves
    scale_observations: bool = False  # the network sees numbers with finite bounds as -1 .. 1


@dataclass(frozen=True)
class CollectorConfig:
    """Who plays: processes, sub-environments, exploration."""

    num_workers: int | None = None  # None: cores - 2, at least 1
    envs_per_worker: int = 16
    exploration: str = one_of("linear", "apex")
    epsilon_start: float = 1.0
    epsilon_end: float = 0.05
    epsilon_decay_frames: int = 10_000
    apex_epsilon: float = 0.4  # Horgan et al. 2018: epsilon_i = apex_epsilon ** (1 + i / (N - 1) * apex_alpha)
    apex_alpha: float = 7.0


@dataclass(frozen=True)
class ReplayConfig:
    """The shared replay."""

    capacity_frames: int = 50_000
    priority_alpha: float = 0.5  # drawn with probability in proportion to priority ** alpha; 0 is uniform
    priority_beta: float = 0.4  # importance weights are (N P) ** -beta over their largest ...
    priority_beta_end: float = 1.0  # ... linearly to this over the budget
    priority_eps: float = 1e-6  # added to a TD error
    # Of a new row: the largest so far, or (dqn, apex, qrdqn) the TD error of the values that the collector acted by.
    initial_priority: str = one_of("max", "collector")
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
    execution: str = one_of("auto", "eager", "trace", "compile")
    precision: str = one_of("float32", "bfloat16")  # bfloat16: autocast of the networks
    channels_last: bool = True  # memory format of convolutions
    prefetch_batches: int = 16  # batches gathered at once, at most; priorities within them are as old as they are many
    publish_every_updates: int = 10
    num_threads: int = 1
    deterministic: bool = False  # operations that give the same bits each time, on GPUs too, where they are slower


@dataclass(frozen=True)
class ScheduleConfig:
    """How collection and learning take turns."""

    name: str = one_of("async", "sync", "sequential", "shared_gradient")
    frames_per_update: float | None = 10.0  # inverse replay ratio; None: no limit on either side (async only)
    episodes_per_update: float | None = None  # in its place: finished episodes for each update, in all environments
    tolerance_frames: int | None = (
        None  # how far collection may run ahead of learning; None: 2 steps of all, at least 512
    )
    frames_per_round: int | None = None  # sync, sequential: frames between two phases of learning; None: about 1,024
    episodes_per_round: int | None = None  # sync, sequential: instead, this many episodes a worker; None: 4 for games
    num_agents: int = 2  # shared_gradient: local agents, each a process that acts, learns and applies its gradients
    application: str = one_of("locked", "hogwild")  # shared_gradient: one at a time, or whenever and losing some
    applier: str = one_of("auto", "local", "device")  # shared_gradient: each by itself, or one on learner.device
    # sync, sequential: None follows frames_per_update, or for games in rounds of episodes makes one for each episode
    updates_per_round: int | None = None


@dataclass(frozen=True)
class EvaluatorConfig:
    """Greedy episodes beside the training."""

    every_frames: int = 5_000  # 0: only at the end
    episodes: int = 20
    final_episodes: int = 100
    num_envs: int = 20
    nice: int = 10  # the evaluator's process gives way to collection and learning
    league_games: int = 20  # self-play: of each pair in the league at the end; 0: no league
    stop_at_return: float | None = None  # the run ends when an evaluation's mean reaches this


@dataclass(frozen=True)
class AgentsConfig:
    """Where several agents of one world learn; one agent alone learns in the main process."""

    learner: str = one_of("stacked", "process", "sequential")  # alike ones in one update; a process each; one by one
    overrides: dict[str, Any] = field(default_factory=dict)  # agent -> section -> key -> its own value
    frozen: list[str] = field(default_factory=list)  # agents that act but do not learn
    start_from: dict[str, str] = field(default_factory=dict)  # agent -> policy.pt of another run
    hang_seconds: float = 60.0  # a learner process that shows no life for so long is started anew


@dataclass(frozen=True)
class OpponentsConfig:
    """Whom an agent plays turn-based games against: how often each kind is drawn for a seat and an episode."""

    random: float = 0.2
    scripted: float = 0.0  # the game's heuristic or perfect player, where there is one
    latest: float = 0.3  # the agent itself, by its newest weights
    snapshots: float = 0.5  # its past selves; as latest until there is one
    checkpoints: float = 0.0  # policies of other runs: checkpoint_paths
    random_end: float | None = None  # None keeps it constant; else moves linearly to this over the budget; so do all
    scripted_end: float | None = None
    latest_end: float | None = None
    snapshots_end: float | None = None
    checkpoints_end: float | None = None
    checkpoint_paths: list[str] = field(default_factory=list)  # a policy.pt or a snapshot each
    start_from: str | None = None  # policy.pt of another run that is the first snapshot
    both_seats: bool = True  # learn from the other seat's decisions too where latest sits there
    snapshot_every_frames: int = 50_000
    pool_size: int = 20  # snapshots that are kept; the oldest makes room
    active: int = 4  # of them, those that a worker plays against at a time; while others play, one makes room
    sampling: str = one_of("uniform", "last", "pfsp")
    last_k: int = 5  # last: the newest so many
    epsilon: float = 0.05  # random moves of latest and snapshots
    evaluate_against: str = one_of("random", "scripted")


@dataclass(frozen=True)
class CheckpointConfig:
    """What is kept on disk."""

    save_every_seconds: float = 300.0
    keep_last: int = 2
    replay: bool = True  # keep the replay's rows too; without them a resumed run first fills an empty replay


@dataclass(frozen=True)
class FaultsConfig:
    """What is survived. A collector worker that dies or hangs, and the evaluator if it dies, is started anew."""

    max_failures: int = 5  # of one of them within the period that are survived; 0: the first one ends the run
    period_seconds: float = 600.0
    hang_seconds: float = 120.0  # a worker that has shown no life for so long is killed
    worker_memory_mb: int | None = None  # one that has grown above this is replaced, as an environment may leak


@dataclass(frozen=True)
class LoggerConfig:
    """Where the run is shown. JSONL, CSV and the terminal are always on."""

    name: str = one_of("none", "wandb", "tensorboard")
    every_seconds: float = 1.0
    terminal: str = one_of("auto", "live", "plain", "none")
    wandb_project: str = "trainer"
    wandb_entity: str | None = None
    wandb_group: str | None = None
    wandb_mode: str = one_of("auto", "online", "offline", "disabled")
    wandb_tags: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class TelemetryConfig:
    """What is recorded beside the figures of a row."""

    trace: bool = False  # RUN/trace.json, for ui.perfetto.dev: what every process did when
    trace_events: int = 20_000  # that each process keeps of it, the last ones


@dataclass(frozen=True)
class Config:
    """One run."""

    preset: str = "cartpole"
    seed: int = 0
    budget_frames: int = 50_000
    run_dir: str | None = None  # None: runs/<date>_<time>_<env>_<algorithm>_<seed>
    resume: str | None = None  # a run's folder to go on in; auto: run_dir, where that holds a run
    env: EnvConfig = field(default_factory=EnvConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
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
    """Every dotted key of a configuration, as ``learner.batch_size``, with its value; of a class, with its field."""
    found: dict[str, Any] = {}
    for item in fields(config):
        section = item.default_factory if isinstance(config, type) else getattr(config, item.name)
        if is_dataclass(section):
            found |= config_keys(section, f"{prefix}{item.name}.")
        else:
            found[prefix + item.name] = item if isinstance(config, type) else section
    return found


def group_options(group: str) -> tuple[str, ...]:
    """Names that ``group=NAME`` takes: the files of configs/<group>/, sorted."""
    return tuple(sorted(path.stem for path in (CONFIG_DIR / group).glob("*.yaml")))


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that a wrong one most likely meant: by its last part, that part's initials (lr) or spelling."""
    section, _, leaf = name.lower().rpartition(".")

    def likeness(candidate: str) -> float:
        known_section, _, known_leaf = candidate.lower().rpartition(".")
        words = known_leaf.split("_")
        if leaf == known_leaf:
            score = 1.0
        elif leaf == "".join(word[:1] for word in words):
            score = 0.95
        else:
            score = max(0.8 if leaf in words else 0.0, SequenceMatcher(None, leaf, known_leaf).ratio())
        return score + 0.2 * SequenceMatcher(None, section, known_section).ratio()

    return max(known, key=likeness)


def available_cores() -> int:
    """Cores that this process may use: SLURM's share of the node, else the affinity mask; never the whole machine.

    Raises:
        ConfigError: SLURM_CPUS_PER_TASK is no positive whole number.
    """
    share = os.environ.get("SLURM_CPUS_PER_TASK")
    if share is None:
        return len(os.sched_getaffinity(0))
    if not share.isdecimal() or int(share) < 1:
        raise ConfigError(f"SLURM_CPUS_PER_TASK={share} is no positive whole number: set it right, or unset it")
    return int(share)


def resolve(config: Config, cores: int | None = None) -> Config:
    """The configuration with every value filled in that depends on the machine.

    Of ``cores`` (None: `available_cores`), two are left to the learner and the evaluator.
    """
    collector, schedule = config.collector, config.schedule
    if schedule.name == "shared_gradient":
        collector = replace(collector, num_workers=1)  # of each local agent
    if collector.num_workers is None:
        workers = max(1, (available_cores() if cores is None else cores) - 2)
        collector = replace(collector, num_workers=workers)
    step = max(1, cast(int, collector.num_workers) * collector.envs_per_worker)  # frames of one step of all workers
    if schedule.tolerance_frames is None:
        schedule = replace(schedule, tolerance_frames=max(512, 2 * step))
    if config.env.backend in GAME_BACKENDS and schedule.name in ("sync", "sequential"):
        schedule = _rounds_of_games(schedule, cast(int, collector.num_workers))
    if schedule.frames_per_round is None and schedule.name == "shared_gradient":
        schedule = replace(schedule, frames_per_round=step)
    if schedule.frames_per_round is None and schedule.episodes_per_round is None:
        schedule = replace(schedule, frames_per_round=max(1, round(1_024 / step)) * step)
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


def to_dict(config: Config) -> dict[str, Any]:
    """Nested dict of plain Python values."""
    return asdict(config)


def to_yaml(config: Config) -> str:
    """YAML text that `from_yaml` reads back into an equal `Config`."""
    import yaml

    return yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True)


def schema() -> Any:
    """The types and defaults of `Config` as an OmegaConf node that takes values, which frozen classes refuse."""
    from omegaconf import OmegaConf

    node = OmegaConf.structured(Config)
    OmegaConf.set_readonly(node, None)
    for item in fields(Config):
        if OmegaConf.is_config(node[item.name]):
            OmegaConf.set_readonly(node[item.name], None)
    return node


def from_yaml(path: str | Path) -> Config:
    """Read a run's config.yaml; keys that it does not name take their defaults.

    Raises:
        ConfigError: the file is missing, damaged, no YAML mapping, or names a key or value that `Config` does not take.
    """
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        read = OmegaConf.create(read_text(Path(path), "name a run's folder that holds a whole one"))
    except ReadError as error:
        raise ConfigError(str(error)) from error
    # A number of 5,000 digits; neither a mapping nor a list; an alias of itself.
    except (YAMLError, ValueError, AssertionError, RecursionError) as error:
        raise ConfigError(f"{path} is no YAML file: {first_line(error)}") from error
    if not isinstance(read, DictConfig) or not read:
        raise ConfigError(f"{path} holds no mapping of keys to values, so it is no run's config.yaml")
    try:
        return cast(Config, OmegaConf.to_object(OmegaConf.merge(schema(), read)))
    except OmegaConfBaseException as error:
        key = error.full_key or ""
        hint = "" if key in config_keys() else f" (the nearest is {nearest(key, config_keys())})"
        raise ConfigError(f"{path}, {key}: {first_line(error)}{hint}") from error


def first_line(error: Exception) -> str:
    """First line of an error's text, for a sentence of ours around it."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
