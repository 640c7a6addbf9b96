"""The sections of the algorithms, each with the keys that the algorithm uses; `ALGORITHMS` lists the algorithms.

Keys of several algorithms are inherited. It is the only inheritance in this project: a key must be a field of each
section, and two dozen repeated fields could get different defaults and ranges.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, make_dataclass
from functools import cache
from typing import Any

from trainer.config.algorithm_checks import check_c51, check_ensemble, check_network, check_quantiles
from trainer.config.fields import number, numbers, one_of, part
from trainer.config.registries import ACTIVATIONS, CNNS, LOSS_FUNCTIONS


@dataclass(frozen=True)
class AlgorithmConfig:
    """Keys of every algorithm: the return, the updates of target networks, and layers."""

    name: str = "dqn"  # the algorithm; algorithm=NAME also reads its file in configs/algorithm/
    gamma: float = number(0.99, 0.01, 1.0, (0.1, 1.0))  # discount factor
    n_step: int = number(1, 1, 10_000, (1, 100))  # rewards that are summed before the value of what follows is added
    prioritized: bool = False  # draw transitions by TD error, as replay.priority_* say
    target_update_every_updates: int = number(100, 1, 10**9)  # updates between two copies to the target network
    # after every update: target += target_tau * (online - target); null: copies, every target_update_every_updates
    target_tau: float | None = number(None, 1e-6, 1.0, (1e-4, 1.0))
    hidden_sizes: list[int] = numbers([120, 84], 1, 65_536, (4, 8_192))  # units of the hidden layers
    activation: str = part(*ACTIVATIONS, call="")  # of the hidden layers
    cnn: str = part("auto", *CNNS, call="channels")  # encoder of image observations
    encoders: dict[str, str] = field(default_factory=dict)  # leaf -> package.module:function, its encoder
    scale_observations: bool = False  # map observations with finite bounds to -1 .. 1
    # subtract the running mean of observations and divide by their running standard deviation
    normalize_observations: bool = False
    normalize_rewards: bool = False  # divide rewards by the running standard deviation of the discounted return
    normalize_clip: float = number(10.0, 0.1, 1e6, (1.0, 1_000.0))  # bound of the absolute value of what is normalised


@dataclass(frozen=True)
class ValueConfig(AlgorithmConfig):
    """Keys of all algorithms that learn values of numbered actions."""

    dueling: bool = False  # value and advantage in two heads
    noisy: bool = False  # noisy linear layers explore, in place of epsilon
    noisy_sigma: float = number(0.5, 1e-4, 100.0, (0.01, 5.0))  # first size of the noise of noisy layers
    value_rescaling: bool = False  # learn h(x) = sign(x) (sqrt(|x| + 1) - 1) + x / 1000 of the return


@dataclass(frozen=True)
class NetworkConfig(ValueConfig):
    """Keys of all algorithms whose whole network may be a user's."""

    # package.module:function of yours, called with the environment's spec and this section.
    network: str = part("auto", call="spec section", kwargs="network_kwargs")
    network_kwargs: dict[str, Any] = field(default_factory=dict)  # its further arguments


@dataclass(frozen=True)
class OneValueConfig(NetworkConfig):
    """Keys of all algorithms whose network gives one number for each action, its value."""


@dataclass(frozen=True)
class DQNConfig(OneValueConfig):
    """dqn, apex."""

    double: bool = True  # the online network chooses the next action, the target network evaluates it
    loss_function: str = one_of(*LOSS_FUNCTIONS)  # of the TD error


@dataclass(frozen=True)
class C51Config(NetworkConfig):
    """c51, rainbow."""

    name: str = "c51"
    double: bool = True
    num_atoms: int = number(51, 2, 4_096, (3, 1_024))  # atoms of the return's distribution, evenly from v_min to v_max
    # Smallest discounted return; None: by the rewards of random play. Values begin at 0 or next to it.
    v_min: float | None = number(None, -1e9, 1e9, (-1e6, 1e6))
    v_max: float | None = number(None, -1e9, 1e9, (-1e6, 1e6))  # largest one; None: by the rewards of random play


@dataclass(frozen=True)
class QRDQNConfig(NetworkConfig):
    """qrdqn."""

    name: str = "qrdqn"
    double: bool = True
    loss_function: str = one_of(*LOSS_FUNCTIONS)
    num_quantiles: int = number(32, 1, 4_096, (2, 1_024))  # quantiles of the return's distribution


@dataclass(frozen=True)
class IQNConfig(ValueConfig):
    """iqn."""

    name: str = "iqn"
    double: bool = True
    loss_function: str = one_of(*LOSS_FUNCTIONS)
    # fractions drawn for a transition, and as many for its successor
    num_fractions: int = number(8, 1, 1_024, (1, 256))
    num_acting_fractions: int = number(32, 1, 4_096, (1, 1_024))  # evenly spaced fractions that acting averages over
    fraction_cosines: int = number(64, 1, 4_096, (4, 1_024))  # cosines in the embedding of a fraction
    # act by the mean of this share of the worst returns; 1: all
    risk_level: float = number(1.0, 0.001, 1.0, (0.01, 1.0))


@dataclass(frozen=True)
class MunchausenConfig(OneValueConfig):
    """munchausen."""

    name: str = "munchausen"
    loss_function: str = one_of(*LOSS_FUNCTIONS)
    munchausen_alpha: float = number(0.9, 0.0, 1.0)  # weight of the log-policy added to the reward
    munchausen_temperature: float = number(0.03, 1e-4, 100.0, (1e-3, 1.0))  # temperature of the log-policy
    munchausen_clip: float = number(-1.0, -1e6, 0.0, (-100.0, 0.0))  # lower bound of the log-policy term


@dataclass(frozen=True)
class ActorCriticConfig(AlgorithmConfig):
    """Keys of all algorithms with an actor and critics."""

    num_critics: int = number(2, 1, 1_000, (1, 20))  # networks in the ensemble of critics
    actor_learning_rate: float | None = number(None, 1e-12, 1.0, (1e-6, 0.1))  # null: learner.learning_rate


@dataclass(frozen=True)
class EntropyConfig(ActorCriticConfig):
    """Keys of all algorithms that add the policy's entropy to the return; of sac_discrete."""

    name: str = "sac_discrete"
    temperature: float = number(1.0, 1e-8, 1e6, (1e-4, 100.0))  # first weight of the policy's entropy
    learn_temperature: bool = True  # towards algorithm.target_entropy; else it is fixed
    temperature_learning_rate: float | None = number(None, 1e-12, 1.0, (1e-6, 0.1))  # null: learner.learning_rate
    # null: minus one for each number of an action, scaled to -1 .. 1; sac_discrete: 0.98 ln(legal actions).
    target_entropy: float | None = number(None, -1e6, 1e6)


@dataclass(frozen=True)
class GaussianConfig(EntropyConfig):
    """Keys of all algorithms with a Gaussian policy."""

    critics_in_target: int | None = number(None, 1, 1_000)  # critics that each update draws for its target; null: all
    actor_every_updates: int = number(1, 1, 10**6, (1, 1_000))  # updates of the critics for each one of the actor


@dataclass(frozen=True)
class SACConfig(GaussianConfig):
    """sac, redq, droq."""

    name: str = "sac"
    critic_layer_norm: bool = False  # layer normalisation before each activation of the critics
    critic_dropout: float = number(0.0, 0.0, 0.99, (0.0, 0.5))  # share of the critics' units that each pass leaves out
    actor_value: str = one_of("min", "mean")  # of the critics' values, which the actor maximises


@dataclass(frozen=True)
class TQCConfig(GaussianConfig):
    """tqc."""

    name: str = "tqc"
    critic_quantiles: int = number(25, 1, 4_096, (2, 1_024))  # of each critic
    dropped_quantiles: int = number(2, 0, 4_096, (0, 1_024))  # of each critic, the largest of all together


@dataclass(frozen=True)
class CrossQConfig(GaussianConfig):
    """crossq."""

    name: str = "crossq"
    renorm_momentum: float = number(0.01, 1e-6, 1.0, (1e-4, 0.5))  # of the running statistics
    renorm_warmup_updates: int = number(100_000, 0, 10**9)  # by batch normalisation


@dataclass(frozen=True)
class TD3Config(ActorCriticConfig):
    """td3, ddpg."""

    name: str = "td3"
    policy_delay: int = number(2, 1, 10**6, (1, 100))  # updates of the critics for each of actor and target networks
    target_noise: float = number(0.2, 0.0, 10.0, (0.0, 1.0))  # deviation of the noise on the target's next action
    target_noise_clip: float = number(0.5, 0.0, 10.0, (0.0, 1.0))  # bound of the noise in the target
    action_noise: float = number(0.1, 0.0, 10.0, (0.0, 1.0))  # deviation of the noise on the collectors' actions
    action_noise_theta: float | None = number(
        None, 0.0, 1.0
    )  # null: independent noise; else theta of Ornstein-Uhlenbeck noise


def _nothing(section: Any) -> list[str]:
    return []


def _plain_layers(section: Any) -> bool:
    return not getattr(section, "noisy", False)  # noisy layers explore, in place of epsilon


@dataclass(frozen=True)
class AlgorithmEntry:
    """An algorithm in the configuration.

    Args:
        section: class of its section.
        build: import path of `build(section, learner, spec) -> Algorithm`.
        check: `check(section) -> warnings`, one sentence each; raises ConfigError if keys do not fit one another.
        actions: the kind of actions that it takes, a key of `ACTIONS`.
        branched: import path of its `build` for actions of several choices at once; "": it takes none.
        several_parts: whether an update has several parts with an optimiser each.
        explores_by_epsilon: `explores_by_epsilon(section)`: whether `collector.epsilon_*` and the like have an effect.
        no_first_priority: why a collector cannot compute the priority of a new row, as the words after "whose
            priority"; "" if it can.
        by_rewards: keys that are chosen by the rewards of random play while they are null, as the size of returns, with
            its sign (`trainer.config.rewards`).
    """

    section: type[AlgorithmConfig]
    build: str
    check: Callable[[Any], list[str]] = _nothing
    actions: str = "numbered"
    branched: str = ""
    several_parts: bool = False
    explores_by_epsilon: Callable[[Any], bool] = _plain_layers
    no_first_priority: str = ""
    by_rewards: Mapping[str, int] = field(default_factory=dict)

    @property
    def builds(self) -> dict[str, str]:
        """Import path of `build` for each kind of actions that it takes."""
        return {self.actions: self.build} | ({BRANCHED: self.branched} if self.branched else {})


def _never(section: Any) -> bool:
    return False


def in_box(section: type[AlgorithmConfig], build: str, check: Callable[[Any], list[str]] = _nothing) -> AlgorithmEntry:
    """The entry of an algorithm whose actions are points in a box; arguments as `AlgorithmEntry`."""
    return AlgorithmEntry(
        section, build, check, actions="box", several_parts=True, explores_by_epsilon=_never,
        no_first_priority="is an error of the critics",
    )  # fmt: skip


# Kinds of actions in words; and the presets of each: of a run that names no environment, and for any environment.
BRANCHED = "branched"
ACTIONS = {
    "numbered": "chooses one of numbered actions",
    "box": "moves within a box",
    BRANCHED: "makes several choices at once",
}
PRESETS = {"numbered": ("cartpole", "generic"), "box": ("pendulum", "continuous")}

_DQN = AlgorithmEntry(
    DQNConfig, "trainer.algorithms.dqn:build", check_network, branched="trainer.algorithms.branching:build"
)
_C51 = AlgorithmEntry(
    C51Config,
    "trainer.algorithms.c51:build",
    check_c51,
    no_first_priority="is the distance of two distributions",
    by_rewards={"v_min": -1, "v_max": 1},
)

# By `algorithm.name`; each has a YAML file in configs/algorithm/.
ALGORITHMS: dict[str, AlgorithmEntry] = {
    "dqn": _DQN,
    "c51": _C51,
    "qrdqn": AlgorithmEntry(QRDQNConfig, "trainer.algorithms.qrdqn:build", check_network),
    "iqn": AlgorithmEntry(
        IQNConfig, "trainer.algorithms.iqn:build", no_first_priority="has the noise of its drawn fractions in it"
    ),
    "munchausen": AlgorithmEntry(
        MunchausenConfig,
        "trainer.algorithms.munchausen:build",
        check_network,
        no_first_priority="has the log-policy in it",
    ),
    "rainbow": _C51,
    "apex": _DQN,
    "sac": in_box(SACConfig, "trainer.algorithms.sac:build", check_ensemble),
    "sac_discrete": AlgorithmEntry(
        EntropyConfig,
        "trainer.algorithms.sac_discrete:build",
        several_parts=True,
        explores_by_epsilon=_never,
        no_first_priority="is an error of the critics",
    ),
    "redq": in_box(SACConfig, "trainer.algorithms.sac:build", check_ensemble),
    "droq": in_box(SACConfig, "trainer.algorithms.sac:build", check_ensemble),
    "tqc": in_box(TQCConfig, "trainer.algorithms.tqc:build", check_quantiles),
    "crossq": in_box(CrossQConfig, "trainer.algorithms.crossq:build", check_ensemble),
    "td3": in_box(TD3Config, "trainer.algorithms.td3:build"),
    "ddpg": in_box(TD3Config, "trainer.algorithms.td3:build"),
}


def _without_bases_first(section: type[AlgorithmConfig]) -> int:
    return -len(section.__mro__)  # Python wants a class before its bases


def any_section() -> Any:
    """The class of the keys of all algorithms: files and arguments may name any of them before the algorithm is known.

    Of a key that several sections have, a user's section says the default.
    """
    return _any_section(tuple(dict.fromkeys(entry.section for entry in reversed(ALGORITHMS.values()))))


@cache
def _any_section(sections: tuple[type[AlgorithmConfig], ...]) -> Any:
    bases = tuple(sorted(sections, key=_without_bases_first))
    return make_dataclass("AnyAlgorithmConfig", [("name", "str", DQNConfig.name)], bases=bases, frozen=True)


AnyAlgorithmConfig: Any = any_section()  # of ours alone


def section_of(values: AlgorithmConfig, name: str) -> AlgorithmConfig:
    """The section of an algorithm, with the values that another section has for its keys.

    With an unknown name, which `trainer.config.validation` refuses later, all keys stay.
    """
    kind = ALGORITHMS[name].section if name in ALGORITHMS else type(values)
    return kind(**{**{key: getattr(values, key) for key in keys_of(kind) if hasattr(values, key)}, "name": name})


def keys_of(section: type[AlgorithmConfig]) -> list[str]:
    """Names of a section's keys."""
    return [item.name for item in fields(section)]
