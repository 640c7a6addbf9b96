"""Treasurehunt: agents walk about and gather what appears; gems and food are worth something, bones and walls cost.

A turn (`TreasureHunt.step` calls the methods in brackets):

1. [entities_turn] Every empty cell becomes, with `spawn_probability`, a gem, food or a bone, each as likely.
2. [observe] All agents observe.
3. [act, for each agent in list order] up, down, left, right. Walls (at a cost) and agents block; entering any other
   cell takes what lies there, for a reward of its value. Each action takes effect before the next agent's.

A step is 3, then 1 and 2 of the next turn, whose observations it returns.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainer.envs.worlds import draws, grid, pictures

KINDS = ("empty", "wall", "gem", "food", "bone", "agent")
EMPTY, WALL, GEM, FOOD, BONE, AGENT = range(6)
COLOURS = np.array([(226, 211, 170), (90, 90, 90), (60, 200, 220), (90, 180, 60), (250, 250, 245), (0, 0, 0)], np.uint8)


class TreasureHunt:
    """`num_worlds` worlds in lockstep; world i of a vector is the single world of seed + i.

    Attributes:
        agents: names, in the order in which they act.
        num_actions: 4: up, down, left, right.
        observation_shape: (6 kinds * (2 * radius + 1)^2,), kind by kind, each a window in row-major order.
        observation_dtype: `bool`.
        grid: kinds, uint8 [num_worlds, height, width], a view that may be written to (`place` sets agents).
        reward: of the turn so far, float32 [num_worlds, num_agents].
        turn: number of the current turn, from 0; the episode ends when it is `max_turns`.
    """

    def __init__(
        self,
        num_worlds: int,
        num_agents: int = 2,
        height: int = 21,
        width: int = 21,
        radius: int = 2,
        max_turns: int = 100,
        spawn_probability: float = 0.005,
        gem_reward: float = 10.0,
        food_reward: float = 5.0,
        bone_reward: float = -10.0,
        wall_reward: float = -1.0,
    ) -> None:
        """Create them in the state after `reset(0)`.

        Args:
            num_worlds: number of worlds.
            num_agents: in each world.
            height: rows, the outer walls included.
            width: columns, the outer walls included.
            radius: how far an agent sees.
            max_turns: turns of an episode; the caller then resets.
            spawn_probability: of each empty cell in each turn.
            gem_reward: for taking a gem.
            food_reward: for taking food.
            bone_reward: for taking a bone.
            wall_reward: for moving against a wall.

        Raises:
            EnvError: the settings are impossible.
        """
        name = "treasurehunt"
        grid.check(name, num_worlds, num_agents, height, width, radius, max_turns, spawn_probability=spawn_probability)
        self.num_worlds, self.max_turns = num_worlds, max_turns
        self.agents = grid.names(num_agents)
        self.num_actions = len(grid.MOVES)
        self._geometry = geometry = grid.Geometry(num_worlds, height, width, radius)
        self._window = geometry.window(radius)
        self.observation_shape = (len(KINDS) * len(self._window),)
        self.observation_dtype = "bool"
        self._spawn_probability = spawn_probability
        self._values = np.array([0, wall_reward, gem_reward, food_reward, bone_reward, 0], np.float32)
        self._passable = np.array([kind not in ("wall", "agent") for kind in KINDS])
        self._kinds = np.arange(len(KINDS), dtype=np.uint8)
        self._steps = geometry.steps
        self._free = grid.places(name, geometry, num_agents)
        self._layer = geometry.layer(WALL, "uint8")
        self.grid = geometry.inner(self._layer)
        self.reset(0)

    @property
    def cells(self) -> NDArray[np.int64]:
        """Where the agents stand: (row, column) int64 [num_worlds, num_agents, 2]."""
        return self._geometry.cells(self._positions)

    def reset(self, seed: int) -> NDArray[np.bool_]:
        """Start an episode in every world: nothing lies about, agents stand on random different cells.

        Returns:
            the observation of the first turn, after its entities' turn, bool [num_worlds, num_agents, *shape].
        """
        self._keys = draws.stream_keys(seed, self.num_worlds)
        self._positions = grid.scatter(self._layer, self._free, self._keys, len(self.agents), AGENT)
        self.turn = -1
        self.entities_turn()
        return self.observe()

    def step(self, actions: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        """Take the actions of a turn, and observe the next one.

        Args:
            actions: int64 [num_worlds, num_agents].

        Returns:
            (observation bool [num_worlds, num_agents, *shape], reward float32 [num_worlds, num_agents]), new arrays.

        Raises:
            EnvError: an action does not exist.
        """
        return grid.step(self, "treasurehunt", actions)

    def entities_turn(self) -> None:
        """Begin the next turn: things appear on empty cells."""
        self.turn += 1
        self.reward = np.zeros((self.num_worlds, len(self.agents)), np.float32)
        grid.spawn(self._layer, self._free, self._keys, self.turn, self._spawn_probability, GEM, 3)

    def observe(self, agent: int | None = None) -> NDArray[np.bool_]:
        """Observations of all agents, bool [num_worlds, num_agents, *shape], or of one, bool [num_worlds, *shape]."""
        return grid.look(self._layer, self._positions, agent, self._window, self._kinds)

    def act(self, agent: int, actions: NDArray[np.int64]) -> None:
        """One agent's action in each world, int64 [num_worlds]; its reward is added to `reward[:, agent]`."""
        position = self._positions[:, agent]
        target = position + self._steps[actions]
        found = self._layer[target]
        self.reward[:, agent] += self._values[found]
        self._positions[:, agent] = grid.move(self._layer, position, target, self._passable[found], AGENT)

    def place(self, cells: NDArray[np.int64]) -> None:
        """Put the agents on other cells, (row, column) int64 [num_worlds or 1, num_agents, 2]; for scenes, tests."""
        self._positions = grid.put(self._layer, self._geometry, self._positions, cells, AGENT)

    def render(self, index: int = 0) -> NDArray[np.uint8]:
        """A picture of one world, rgb uint8 [16 * height, 16 * width, 3]; every agent has a colour of its own."""
        return pictures.portrait(COLOURS[self.grid[index]], self.cells[index])
