"""Learning algorithms: each file builds an :class:`Algorithm`; an added one costs one line here.

``rainbow`` and ``apex`` are sets of options of ``c51`` and ``dqn``: see configs/algorithm/.
"""

from trainer.algorithms import c51, dqn, iqn, munchausen, qrdqn
from trainer.algorithms.algorithm import Algorithm

ALGORITHMS = {
    "dqn": dqn.build,
    "c51": c51.build,
    "qrdqn": qrdqn.build,
    "iqn": iqn.build,
    "munchausen": munchausen.build,
    "rainbow": c51.build,
    "apex": dqn.build,
}

__all__ = ["ALGORITHMS", "Algorithm"]
