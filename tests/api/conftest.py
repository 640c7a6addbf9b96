"""An environment whose observations have every kind of leaf, and a finished run in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from trainer.config.sections import Config


class Cards(gym.Env[Any, Any]):
    """A dict of a category that begins at 2, a tuple of numbers and categories, and a mask; actions begin at 1.

    A reward is the first number where the action is the hand's, so that it depends on all that a policy sees.
    """

    observation_space = spaces.Dict(
        {
            "hand": spaces.Discrete(3, start=2),
            "table": spaces.Tuple((spaces.Box(0.0, 1.0, (4,), np.float32), spaces.MultiDiscrete([2, 3]))),
            "action_mask": spaces.MultiBinary(3),
        }
    )
    action_space = spaces.Discrete(3, start=1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.mask[action - 1], f"{action} is not legal"
        reward = float(self.numbers[0]) * (1.0 if action == self.hand - 1 else 0.5)
        self.steps += 1
        return self._seen(), reward, self.steps == 12, False, {}

    def _seen(self) -> dict[str, Any]:
        self.hand = 2 + int(self.np_random.integers(3))
        self.numbers = self.np_random.random(4, np.float32)
        self.mask = np.ones(3, np.int8)
        self.mask[int(self.np_random.integers(3))] = 0
        more = self.np_random.integers([2, 3])
        return {"hand": self.hand, "table": (self.numbers, more), "action_mask": self.mask}


@pytest.fixture(scope="session")
def cards_run(make_config: Callable[..., Config], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run in it, of 800 frames; whoever changes it makes a copy."""
    from trainer.training.train import train

    gym.register("Cards-v0", Cards)
    config = make_config(
        tmp_path_factory.mktemp("cards") / "run", budget_frames=800, schedule={"name": "sequential"},
        env={"id": "Cards-v0", "backend": "gymnasium", "frame_stack": 3}, evaluator={"every_frames": 400},
        algorithm={"hidden_sizes": [16], "prioritized": True}, learner={"learning_rate": 3e-3},
    )  # fmt: skip
    train(config, ["trainer", "run", "env.id=Cards-v0"])
    return Path(str(config.run_dir))
