"""Learning algorithms: each file builds an :class:`Algorithm`; an added one costs one line here."""

from trainer.algorithms.algorithm import Algorithm
from trainer.algorithms.dqn import build as dqn

ALGORITHMS = {"dqn": dqn}

__all__ = ["ALGORITHMS", "Algorithm"]
