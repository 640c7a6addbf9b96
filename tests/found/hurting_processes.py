"""Environments that draw from everyone's generators, start programs, wait, or end as nobody expects.

FOUND_LOG=FILE makes some of them append lines of JSON.
"""

from __future__ import annotations

import json
import os
import random
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from hurting import Plain


def log(**row: Any) -> None:
    """One line, whole even where several processes write."""
    if path := os.environ.get("FOUND_LOG"):
        with open(path, "a") as file:
            file.write(json.dumps({"pid": os.getpid(), **row}) + "\n")


class Chance(Plain):
    """Draws from all three global generators, in its constructor, its resets and its steps."""

    observation_space = gym.spaces.Box(0, 1, (3,), np.float32)

    def __init__(self) -> None:
        self.problem = self.draw()

    def draw(self) -> np.ndarray:
        drawn = np.array([np.random.rand(), random.random(), float(torch.rand(()))], np.float32)
        log(drawn=drawn.tolist())
        return drawn

    def observe(self) -> np.ndarray:
        return (self.draw() + self.problem) / 2


class ChanceReward(Plain):
    """Only what it pays is drawn, so that its episodes can be played again."""

    def step(self, action: int) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        seen, _, *rest = super().step(action)
        return seen, np.random.rand() + random.random() + float(torch.rand(())), *rest


for kind in (Chance, ChanceReward):
    gym.register(f"Found/{kind.__name__}-v0", kind)
