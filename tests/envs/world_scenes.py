"""Worlds with agents and things at given places, for tests."""

from __future__ import annotations

import numpy as np

from trainer.envs.worlds import (
    Cleanup,
    TreasureHunt,
)

UP, DOWN, LEFT, RIGHT, CLEAN, ZAP = range(6)


def actions(*of_agents):
    """The actions of one world's agents, int64 [1, num_agents]."""
    return np.array([of_agents])


def cells(*of_agents):
    """The cells of one world's agents, int64 [1, num_agents, 2]."""
    return np.array([of_agents])


def hunt(*of_agents, **kwargs):
    """A treasurehunt without any treasure, its agents on these cells."""
    world = TreasureHunt(1, num_agents=len(of_agents), spawn_probability=0, **kwargs)
    world.place(cells(*of_agents))
    return world


def town(*of_agents, **kwargs):
    """A cleanup without pollution and apples, its agents on these cells, all looking down."""
    quiet = {"pollution_probability": 0, "apple_probability": 0, "initial_apples": 0}
    world = Cleanup(1, num_agents=len(of_agents), **{**quiet, **kwargs})
    world.place(cells(*of_agents))
    return world


def where(mask):
    """The cells of a mask [height, width] as a set of (row, column)."""
    return set(map(tuple, np.argwhere(mask).tolist()))
