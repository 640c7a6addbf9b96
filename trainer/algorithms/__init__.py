"""Learning algorithms: `trainer.config.algorithms.ALGORITHMS` names them, each file builds an `Algorithm`.

`rainbow` and `apex` are sets of options of `c51` and `dqn`: see configs/algorithm/.
"""

from pkgutil import resolve_name

import torch
from torchrl.modules import QValueActor

from trainer.algorithms.algorithm import Algorithm
from trainer.config.algorithms import ALGORITHMS, AlgorithmConfig
from trainer.config.sections import Config, LearnerConfig
from trainer.envs import EnvSpec

__all__ = ["Algorithm", "build", "check_actions", "make_policy"]


def build(section: AlgorithmConfig, learner: LearnerConfig, spec: EnvSpec) -> Algorithm:
    """The algorithm for an environment. Parameters are drawn from torch's global generator.

    Args:
        section: the algorithm's section, whose `name` is one of `ALGORITHMS`.
        learner: the learner's section.
        spec: the environment.

    Raises:
        ConfigError: the environment does not go with a key.
        EnvError: the algorithm cannot act in the environment.
    """
    algorithm: Algorithm = resolve_name(ALGORITHMS[section.name].build)(section, learner, spec)
    return algorithm


def check_actions(spec: EnvSpec) -> None:
    """Refuse an environment whose actions are not numbered, as every algorithm here needs numbered actions.

    Raises:
        EnvError: the actions are not numbered; the sentence says what the user can do.
    """
    _ = spec.num_actions


def make_policy(config: Config, spec: EnvSpec) -> QValueActor:
    """The actor of a worker, on the CPU; published weights replace its first ones.

    Torch's global generator is left as it is, as environments and updates draw from it.
    """
    with torch.random.fork_rng(devices=[]):
        return build(config.algorithm, config.learner, spec).policy
