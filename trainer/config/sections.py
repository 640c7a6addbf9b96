"""The configuration of a run: frozen dataclasses, one section for each part.

Nothing here imports torch, so that a wrong key is refused before seconds of imports. compose.py makes a `Config` of a
command line, validation.py refuses wrong ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from trainer.config.algorithms import AlgorithmConfig, DQNConfig, any_section
from trainer.config.fields import number, one_of, part
from trainer.config.registries import CLUSTERS, EXPLORATIONS, LEARNING_RATES, OPTIONAL_LOGGERS
from trainer.config.schedules import SCHEDULES, Schedule
from trainer.envs.backends import BACKENDS, PREPROCESSING, SCREEN_SIZE, VECTORIZATION

# Beside the package, in a clone as in an installation, whatever the working folder holds.
CONFIG_DIR = Path(__file__).resolve().parent.parent / "configs"


BLOCK = 32  # most vector steps of a worker that come from another machine at once


@dataclass(frozen=True)
class EnvConfig:
    """The environment, and how it is wrapped."""

    # the environment's id in its backend, as LunarLander-v3, or package.module:object, which makes one environment
    id: str = "CartPole-v1"
    backend: str = part(*BACKENDS)  # the library that makes the environment
    kwargs: dict[str, Any] = field(default_factory=dict)  # handed to the environment's constructor
    # Around each environment, the first one innermost: package.module:function, or with arguments
    # {wrapper: package.module:function, NAME: VALUE}.
    wrappers: list[Any] = field(default_factory=list)
    # Argument of the constructor that gets the instance's number, another one for each environment of a run: a port,
    # a display, a worker id. They begin with first_instance.
    instance_key: str | None = None
    first_instance: int = number(0, 0, 10**9)  # the lowest number that instance_key hands out
    import_modules: list[str] = field(default_factory=list)  # modules that register the id when they are imported
    # atari: grey frames of screen_size, 4 emulator frames a step, no-op starts
    preprocessing: str = one_of(*PREPROCESSING)
    # preprocessing=atari: height and width of a frame in pixels; 42 makes an update 9 times cheaper than 84
    screen_size: int = number(SCREEN_SIZE, 8, 1_024, (36, 256))
    # newest frames that the policy sees at once; the replay stores each once
    frame_stack: int = number(1, 1, 256, (1, 16))
    # sync: one by one in the worker; native: the environment's own vector_entry_point
    vectorization: str = one_of(*VECTORIZATION)
    # steps until an episode is truncated; null: the environment's own limit
    max_episode_steps: int | None = number(None, 1, 10**9, (1, 10**7))
    mask_key: str = "action_mask"  # the action mask's key in the observation or in info
    clip_rewards: bool = False  # train on the sign of the reward; returns are reported unclipped


@dataclass(frozen=True)
class CollectorConfig:
    """Collection: processes, sub-environments, exploration."""

    # collector processes; null: cores - 2, at least 1; with a cluster: nodes x workers_per_node
    num_workers: int | None = number(None, 1, 65_536, (1, 4_096))
    envs_per_worker: int = number(16, 1, 65_536, (1, 4_096))  # environments that each process steps together
    # linear: one epsilon that falls with the frames; apex: a constant one for each environment
    exploration: str = part(*EXPLORATIONS, call="section num_streams streams", kwargs="exploration_kwargs")
    exploration_kwargs: dict[str, Any] = field(default_factory=dict)  # further arguments of an exploration of one's own
    epsilon_start: float = number(1.0, 0.0, 1.0)  # linear: share of random actions at the first frame
    epsilon_end: float = number(0.05, 0.0, 1.0)  # linear: share of random actions after epsilon_decay_frames
    epsilon_decay_frames: int = number(10_000, 0, 10**12)  # linear: frames over which epsilon falls
    # apex: epsilon of environment i of N is apex_epsilon ** (1 + i / (N - 1) * apex_alpha) (Horgan et al. 2018)
    apex_epsilon: float = number(0.4, 0.0, 1.0)
    apex_alpha: float = number(7.0, 0.0, 1_000.0, (0.0, 20.0))  # apex: exponent of the formula at apex_epsilon
    apex_noise: float = number(0.4, 0.0, 1.0)  # apex, td3 and ddpg: as apex_epsilon, the deviation of the noise
    random_frames: int = number(0, 0, 10**12)  # frames at the beginning in which every action is random


@dataclass(frozen=True)
class ClusterConfig:
    """Collection on other machines."""

    # ray: collectors run on the nodes of a Ray cluster, see cluster.md; local: on nodes that are processes here
    name: str = one_of(*CLUSTERS)
    address: str = "auto"  # ray: HOST:PORT of its head; auto: that of the environment variable RAY_ADDRESS
    nodes: int = number(1, 1, 1_000)  # machines that collect; the run begins with those that are there
    # collector processes of each node; null: one less than this machine has cores
    workers_per_node: int | None = number(None, 1, 4_096)
    compression: str = one_of("none", "zlib")  # of rows on their way; zlib: where frames fill the network

    @property
    def remote(self) -> bool:
        """Whether collectors run on other machines."""
        return bool(CLUSTERS[self.name])

    @property
    def block(self) -> int:
        """Most rows of a stream that are written at once."""
        return BLOCK if self.remote else 1


@dataclass(frozen=True)
class ReplayConfig:
    """The shared replay."""

    capacity_frames: int = number(50_000, 1, 10**10)  # frames that the replay holds; the oldest are overwritten
    # prioritized replay draws with probability proportional to priority ** priority_alpha; 0 is uniform
    priority_alpha: float = number(0.5, 0.0, 10.0, (0.0, 1.0))
    # importance weights are (N P) ** -priority_beta, divided by the largest of the batch
    priority_beta: float = number(0.4, 0.0, 1.0)
    priority_beta_end: float = number(1.0, 0.0, 1.0)  # priority_beta moves linearly to this value over the budget
    priority_eps: float = number(1e-6, 1e-12, 1e3, (1e-9, 1.0))  # added to a TD error to make it a priority
    # priority of a new row; max: the largest so far; collector: the TD error by the values that the collector acted by
    initial_priority: str = one_of("max", "collector")
    scratch_dir: str | None = None  # folder of the replay's files while the run goes on; null: RUN/scratch
    # A Minari dataset, by its id or its folder, whose rows are in the replay when training begins.
    start_from: str | None = None


@dataclass(frozen=True)
class LearnerConfig:
    """Updates."""

    device: str = "auto"  # where updates are computed: auto (a GPU if there is one), cpu, cuda or cuda:N
    batch_size: int = number(128, 1, 2**20, (1, 65_536))  # transitions of an update
    learning_rate: float = number(2.5e-4, 1e-12, 1.0, (1e-6, 0.1))  # learning rate of Adam
    # how the learning rate moves over the budget; auto: linear if learning_rate_end is set, else constant
    learning_rate_schedule: str = part("auto", *LEARNING_RATES, call="optimizer start end")
    learning_rate_end: float | None = number(None, 0.0, 1.0, (0.0, 0.1))  # at the end of it; null: 0 (auto: constant)
    learning_rate_warmup_updates: int = number(0, 0, 10**7)  # in which it rises linearly from nearly 0
    adam_eps: float = number(1e-8, 1e-20, 1.0, (1e-12, 0.01))  # epsilon of Adam
    # gradients are scaled down to this Euclidean norm; null: they are not
    max_grad_norm: float | None = number(10.0, 1e-6, 1e12, (1e-3, 1e12))
    warmup_frames: int = number(1_000, 1, 10**10)  # frames that are stored before the first update
    # eager: plain PyTorch; trace: loss and gradient are recorded; compile: torch.compile; auto: trace
    execution: str = one_of("auto", "eager", "trace", "compile")
    precision: str = one_of("float32", "bfloat16")  # bfloat16: autocast of the networks
    channels_last: bool = True  # memory format of convolutions
    # at most this many batches are sampled at once; their priorities are those before the first of these updates
    prefetch_batches: int = number(16, 1, 1_024, (1, 256))
    # a thread samples the next batches while updates are made; in rounds those of the same round. In CartPole's
    # async, beside other work, that took 5 to 11 % off the learner's thread; the process used 4 % less to 6 % more CPU.
    prefetch: bool = False
    publish_every_updates: int = number(10, 1, 10**9)  # updates between two versions of the weights for the collectors
    num_threads: int = number(1, 1, 1_024)  # threads of PyTorch in the learner
    parallel_parts: bool = True  # large parts of an update, as SAC's critics and actor, each in a thread; same bits
    deterministic: bool = False  # PyTorch's deterministic operations: the same bits each time on a GPU too, but slower


@dataclass(frozen=True)
class ScheduleConfig:
    """How collection and learning take turns."""

    name: str = one_of(*SCHEDULES)  # see schedules.md
    # 1 / replay ratio: 10 frames for each update are a replay ratio of 0.1; null: no limit on either side (async only)
    frames_per_update: float | None = number(10.0, 1e-3, 1e9, (0.01, 1e9))
    # in place of frames_per_update: finished episodes of all environments for each update
    episodes_per_update: float | None = number(None, 1e-4, 1e9, (1e-3, 1e9))
    # frames that collection may run ahead of learning; null: 2 steps of all environments, at least 512
    tolerance_frames: int | None = number(None, 1, 10**12)
    # sync, sequential: frames of a round, between two phases of learning; null: about 1,024
    frames_per_round: int | None = number(None, 1, 10**10)
    # sync, sequential: in place of frames_per_round, finished episodes of each worker; null: 4 in games
    episodes_per_round: int | None = number(None, 1, 10**6)
    # shared_gradient: local agents, each a process that acts, learns and applies its gradients
    num_agents: int = number(2, 1, 1_024)
    application: str = one_of("locked", "hogwild")  # shared_gradient: one at a time, or all without a lock
    # shared_gradient: each agent, or the main process on learner.device
    applier: str = one_of("auto", "local", "device")
    # sync, sequential: updates after a round; null: by frames_per_update, or one for each episode in rounds of episodes
    updates_per_round: int | None = number(None, 1, 10**9)

    @property
    def kind(self) -> Schedule:
        """The schedule of this name."""
        return SCHEDULES[self.name]


@dataclass(frozen=True)
class EvaluatorConfig:
    """Evaluation: greedy episodes during the training."""

    every_frames: int = number(5_000, 0, 10**12)  # frames between two evaluations; 0: only at the end
    episodes: int = number(20, 1, 10**6, (1, 20_000))  # episodes of an evaluation during the run
    final_episodes: int = number(100, 1, 10**6, (1, 20_000))  # episodes of each policy in the final evaluation
    num_envs: int = number(20, 1, 16_384, (1, 4_096))  # environments that the evaluator steps together
    # A video of the first evaluation and of every n-th after it; 0: none.
    video_every: int = number(0, 0, 10**9)
    nice: int = number(10, 0, 19)  # the evaluator's nice value, so that it gives way to collection and learning
    # self-play: games of each pair in the league at the end; 0: no league
    league_games: int = number(20, 0, 10**5, (0, 1_000))
    # steps after which an episode is cut, as a greedy policy may move in circles; null: never
    max_episode_steps: int | None = number(27_000, 1, 10**9)
    # time limit of the final evaluation and of the league, each; null: as long as the training took, at least 60 s
    final_max_seconds: float | None = number(None, 0.01, 1e7)
    stop_at_return: float | None = number(None, -1e12, 1e12)  # the run ends when an evaluation's mean reaches this


@dataclass(frozen=True)
class AgentsConfig:
    """Where several agents of one world learn; one agent alone learns in the main process."""

    learner: str = one_of("stacked", "process", "sequential")  # see agents.md
    # values of single agents: agents.overrides.AGENT.SECTION.KEY=VALUE
    overrides: dict[str, Any] = field(default_factory=dict)
    frozen: list[str] = field(default_factory=list)  # agents that act but do not learn
    # the policy file that an agent begins with: agents.start_from.AGENT=PATH
    start_from: dict[str, str] = field(default_factory=dict)
    # a learner process without a sign of life for this time is restarted
    hang_seconds: float = number(60.0, 0.1, 1e9, (1.0, 86_400.0))


@dataclass(frozen=True)
class OpponentsConfig:
    """Whom an agent plays turn-based games against: how often each kind is drawn for a seat and an episode."""

    random: float = number(0.2, 0.0, 1e6)  # weight of random play
    scripted: float = number(0.0, 0.0, 1e6)  # weight of the game's heuristic or perfect player, where there is one
    latest: float = number(0.3, 0.0, 1e6)  # weight of the agent itself with its newest weights
    snapshots: float = number(0.5, 0.0, 1e6)  # weight of earlier versions of the agent; until there is one, of latest
    checkpoints: float = number(0.0, 0.0, 1e6)  # weight of the policies of other runs: checkpoint_paths
    # the weight moves linearly to this over the budget; null: constant
    random_end: float | None = number(None, 0.0, 1e6)
    scripted_end: float | None = number(None, 0.0, 1e6)  # the same for scripted
    latest_end: float | None = number(None, 0.0, 1e6)  # the same for latest
    snapshots_end: float | None = number(None, 0.0, 1e6)  # the same for snapshots
    checkpoints_end: float | None = number(None, 0.0, 1e6)  # the same for checkpoints
    checkpoint_paths: list[str] = field(default_factory=list)  # files of policies or of snapshots
    start_from: str | None = None  # the policy file of another run that is the first snapshot
    both_seats: bool = True  # learn from the decisions of the other seat too, where latest sits there
    snapshot_every_frames: int = number(50_000, 1, 10**12)  # frames between two snapshots
    pool_size: int = number(20, 1, 10**4, (1, 1_000))  # most snapshots; a new one replaces the oldest
    # snapshots that a worker plays against at a time; one of them is replaced when its games are over
    active: int = number(4, 2, 10**4, (2, 100))
    # how a snapshot is chosen; pfsp: the harder to beat, the more often
    sampling: str = one_of("uniform", "last", "pfsp")
    last_k: int = number(5, 1, 10**4)  # last: number of the newest snapshots that are chosen from
    epsilon: float = number(0.05, 0.0, 1.0, (0.0, 0.5))  # share of random moves of latest, snapshots and checkpoints
    scripted_player: str = part("auto")  # auto: the game's; or package.module:function
    evaluate_against: str = part("random", "scripted")  # the opponent in evaluations


@dataclass(frozen=True)
class CheckpointConfig:
    """Checkpoints."""

    save_every_seconds: float = number(300.0, 0.01, 1e9, (0.1, 86_400.0))  # time between two checkpoints
    keep_last: int = number(2, 1, 10**6, (1, 1_000))  # newest checkpoints that stay on disk
    # Frames between two policies that are kept for good in RUN/checkpoints/policies; 0: none is.
    policy_every_frames: int = number(0, 0, 10**12)
    replay: bool = True  # save the replay's rows too; without them a resumed run first fills an empty replay


@dataclass(frozen=True)
class FaultsConfig:
    """Failures that a run survives. A worker that dies or hangs is restarted, and the evaluator if it dies."""

    # failures of one process within period_seconds that a run survives; with more it ends
    max_failures: int = number(5, 0, 10**9)
    period_seconds: float = number(600.0, 0.1, 1e9)  # the period of max_failures
    # a worker or an evaluator without a sign of life for this time is killed and replaced
    hang_seconds: float = number(120.0, 0.1, 1e9, (1.0, 86_400.0))
    # a worker with more resident memory than this is replaced, as an environment may leak; null: no limit
    worker_memory_mb: int | None = number(None, 64, 10**8, (256, 10**8))


@dataclass(frozen=True)
class LoggerConfig:
    """Loggers. JSONL, CSV, the text log and the terminal are always on."""

    name: str = part("none", *OPTIONAL_LOGGERS, call="section run notify")  # a logger beside those that are always on
    every_seconds: float = number(1.0, 0.01, 1e9, (0.1, 3_600.0))  # time between two rows of metrics
    # Keys of `info` whose value at an episode's end is logged, a.b for info["a"]["b"]; null: all numbers.
    info_keys: list[str] | None = None
    terminal: str = one_of("auto", "live", "plain", "none")  # auto: a live view on a terminal, plain lines elsewhere
    wandb_project: str = "trainer"  # project of the run in W&B
    wandb_entity: str | None = None  # user or team in W&B; null: your default
    wandb_group: str | None = None  # group of the run in W&B; null: none
    # auto: online where you are logged in, else offline
    wandb_mode: str = one_of("auto", "online", "offline", "disabled")
    wandb_tags: list[str] = field(default_factory=list)  # tags of the run in W&B


@dataclass(frozen=True)
class TelemetryConfig:
    """What is recorded besides metrics."""

    trace: bool = False  # write RUN/trace.json: what every process did, and when, for ui.perfetto.dev
    trace_events: int = number(20_000, 1, 10**7, (100, 10**6))  # newest spans that each process holds in memory


@dataclass(frozen=True)
class Config:
    """One run."""

    preset: str = "cartpole"  # a file of configs/preset/; without one, that of env.id if there is one, else generic
    seed: int = number(0, 0, 2**63)  # of environments, exploration, networks and sampling
    budget_frames: int = number(50_000, 1, 10**12 - 1, (1, 10**10))  # frames that are collected in all
    run_dir: str | None = None  # the run's folder; null: runs/<date>_<time>_<env>_<algorithm>_<seed>
    resume: str | None = None  # folder of the run to continue; auto: run_dir, if it holds a run
    # called while the run goes on (docs/python.md): package.module:object, or with arguments
    # {callback: package.module:function, NAME: VALUE}
    callbacks: list[Any] = field(default_factory=list)
    env: EnvConfig = field(default_factory=EnvConfig)
    # The section of the algorithm that was chosen; until it is known which, the keys of all of them.
    algorithm: AlgorithmConfig = field(default_factory=DQNConfig, metadata={"keys": any_section})
    collector: CollectorConfig = field(default_factory=CollectorConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
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
        if is_type:
            section = item.metadata["keys"]() if "keys" in item.metadata else item.default_factory
        else:
            section = getattr(config, item.name)
        if is_dataclass(section):
            found |= config_keys(section, f"{prefix}{item.name}.")
        else:
            found[prefix + item.name] = item if is_type else section
    return found


def group_options(group: str, folders: tuple[Path, ...] = ()) -> tuple[str, ...]:
    """Names that `group=NAME` takes: the files of configs/<group>/ and of the user's folders, sorted."""
    return tuple(sorted({path.stem for folder in (CONFIG_DIR, *folders) for path in (folder / group).glob("*.yaml")}))
