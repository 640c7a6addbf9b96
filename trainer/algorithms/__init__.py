"""Learning algorithms: each file builds an :class:`Algorithm`; an added one costs one line here.

`rainbow` and `apex` are sets of options of `c51` and `dqn`: see configs/algorithm/.
"""

import torch
from torchrl.modules import QValueActor

from trainer.algorithms import c51, dqn, iqn, munchausen, qrdqn
from trainer.algorithms.algorithm import Algorithm
from trainer.config.sections import Config
from trainer.envs import EnvSpec

ALGORITHMS = {
    "dqn": dqn.build,
    "c51": c51.build,
    "qrdqn": qrdqn.build,
    "iqn": iqn.build,
    "munchausen": munchausen.build,
    "rainbow": c51.build,
    "apex": dqn.build,
}

__all__ = ["ALGORITHMS", "Algorithm", "check_actions", "make_policy"]


def check_actions(spec: EnvSpec) -> None:
    """Refuse an environment whose actions no algorithm here can choose: each takes numbered ones.

    Raises:
        EnvError: in one sentence that says what the user can do.
    """
    _ = spec.num_actions


def make_policy(config: Config, spec: EnvSpec) -> QValueActor:
    """The actor that a worker acts by, on the CPU, with weights to be replaced by published ones.

    It draws its first weights without touching torch's global generator, which environments and updates draw from.
    """
    with torch.random.fork_rng(devices=[]):
        return ALGORITHMS[config.algorithm.name](config.algorithm, config.learner, spec).policy
