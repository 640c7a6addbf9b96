"""Learning rates over a run: schedules of PyTorch over the budget, and a linear warm-up over the first updates.

A scheduler of `torch.optim.lr_scheduler` runs once, on another optimiser, and its rates become a table. So the rate
follows from frames and updates alone, and a resumed run goes on with the same rates.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler

from trainer.config.registries import LEARNING_RATES, registered
from trainer.config.sections import LearnerConfig

STEPS = 100  # of a schedule over the budget


def constant(optimizer: Optimizer, start: float, end: float) -> LRScheduler:
    """`learner.learning_rate_schedule=constant`: always `start`."""
    return LambdaLR(optimizer, lambda step: 1.0)


def linear(optimizer: Optimizer, start: float, end: float) -> LRScheduler:
    """`learner.learning_rate_schedule=linear`: from `start` to `end`, which may be the larger one."""
    return LambdaLR(optimizer, lambda step: (start + (end - start) * step / STEPS) / start)


def cosine(optimizer: Optimizer, start: float, end: float) -> LRScheduler:
    """`learner.learning_rate_schedule=cosine`: half a cosine from `start` to `end` (Loshchilov and Hutter 2017)."""
    return CosineAnnealingLR(optimizer, T_max=STEPS, eta_min=end)


def learning_rates(config: LearnerConfig) -> Callable[[float, int], float]:
    """The learning rate of the next update: `rate(fraction, updates)`.

    `fraction` is the part of the budget that is collected, 0 to 1, which counts in whole hundredths; `updates` is the
    number of updates made. In the first W = `learning_rate_warmup_updates` updates the rate is (updates + 1) / W of
    what it would be.
    """
    end, name = config.learning_rate_end, config.learning_rate_schedule
    if name == "auto":
        name = "constant" if end is None else "linear"
    make = registered(LEARNING_RATES, name)
    over_budget = _table(lambda one: make(one, config.learning_rate, end or 0.0), config.learning_rate, STEPS)
    warm = max(1, config.learning_rate_warmup_updates)

    def rate(fraction: float, updates: int) -> float:
        return over_budget[int(min(1.0, fraction) * STEPS)] * min(1.0, (updates + 1) / warm)  # as PyTorch's LinearLR

    return rate


def _table(make: Callable[[Optimizer], LRScheduler], start: float, steps: int) -> list[float]:
    """The rates of a scheduler before its first step and after each of `steps` steps."""
    optimizer = torch.optim.SGD([torch.zeros((), requires_grad=True)], lr=start)
    scheduler = make(optimizer)
    rates = [float(scheduler.get_last_lr()[0])]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")  # no step of the optimiser
        for _ in range(steps):
            scheduler.step()
            rates.append(float(scheduler.get_last_lr()[0]))
    return rates
