"""Learning algorithms: `trainer.config.algorithms.ALGORITHMS` names them, each file builds an `Algorithm`.

`rainbow` and `apex` are sets of options of `c51` and `dqn`: see configs/algorithm/.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from tensordict.nn import TensorDictModule

from trainer.algorithms.algorithm import Algorithm
from trainer.config.algorithms import ACTIONS, ALGORITHMS, BRANCHED, AlgorithmConfig
from trainer.config.fields import ConfigError
from trainer.config.sections import Config, LearnerConfig
from trainer.envs import Action, BoxAction, DiscreteAction, EnvError, EnvSpec
from trainer.envs.import_paths import NoPart, part_at

__all__ = ["Algorithm", "build", "check_actions", "make_policy"]


def build(section: AlgorithmConfig, learner: LearnerConfig, spec: EnvSpec) -> Algorithm:
    """The algorithm for an environment. Parameters are drawn from torch's global generator.

    They are float32 on the CPU, whatever defaults an environment has set in this process.

    Args:
        section: the algorithm's section, whose `name` is one of `ALGORITHMS`.
        learner: the learner's section.
        spec: the environment.

    Raises:
        ConfigError: the environment does not go with a key, or a part of the user's cannot be imported.
        EnvError: the environment has another kind of actions; see `check_actions`.
    """
    entry = ALGORITHMS[section.name]
    path = entry.builds.get(spec.action.kind, entry.build)
    try:
        with _float32_on_cpu():
            algorithm: Algorithm = part_at(path)(section, learner, spec)
    except NoPart as error:  # of a policy that is used in another folder than it was trained in
        raise ConfigError(f"algorithm={section.name} has a part that is not here, {error}") from error
    return algorithm


@contextmanager
def _float32_on_cpu() -> Iterator[None]:
    """Torch's first defaults: environments may call `torch.set_default_dtype` and `torch.set_default_device`."""
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.device("cpu"):
            yield
    finally:
        torch.set_default_dtype(dtype)


def check_actions(config: Config, spec: EnvSpec) -> None:
    """Refuse an environment with another kind of actions than the algorithm takes.

    Args:
        config: of the agent.
        spec: the environment.

    Raises:
        EnvError: the sentence says what the user can do.
    """
    name, kind = config.algorithm.name, spec.action.kind
    entry = ALGORITHMS[name]
    if kind not in entry.builds:
        others = " or ".join(other for other, its in ALGORITHMS.items() if kind in its.builds)
        advice = "" if isinstance(spec.action, DiscreteAction) else spec.action.advice
        raise EnvError(
            f"{spec.id}: an action is {_in_words(spec.action)}, and algorithm={name} {ACTIONS[entry.actions]}: set "
            f"algorithm={others}{advice}."
        )
    if kind == BRANCHED and config.algorithm.prioritized and config.replay.initial_priority == "collector":
        raise EnvError(
            f"{spec.id}: an action is {_in_words(spec.action)}, whose values the collectors do not store: set "
            "replay.initial_priority=max."
        )


def _in_words(action: Action) -> str:
    if isinstance(action, DiscreteAction):
        return f"one of {action.n} numbers"
    return "a point in a box" if isinstance(action, BoxAction) else f"{len(action.nvec)} choices at once"


def make_policy(config: Config, spec: EnvSpec) -> TensorDictModule:
    """The actor of a worker, on the CPU; published weights replace its first ones.

    Its attribute `acting` says how it acts and explores (`trainer.acting.acting.acting_of`).
    Torch's global generator is left as it is, as environments and updates draw from it.
    """
    with torch.random.fork_rng(devices=[]):
        algorithm = build(config.algorithm, config.learner, spec)
    algorithm.policy.acting = algorithm.acting
    return algorithm.policy
