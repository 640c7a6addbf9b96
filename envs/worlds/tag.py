"""Tag: one agent is "it", until it stands beside another agent, which then is "it"; all others get a reward.

A turn (`Tag.step` calls the methods in brackets):

1. [entities_turn] Nothing happens: there are only agents and walls.
2. [observe] All agents observe.
3. [act, for each agent in list order] up, down, left, right; walls and agents block. If an agent that is "it" stands
   beside another one after its move (even a blocked one), that one becomes "it": of several the one above, else below,
   else left, else right. If the new one has not acted in this turn, it may pass it on in the same turn.

When all have acted, each agent that is not "it" gets the reward. A step returns the observations of the next turn.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainer.envs.worlds import draws, grid, pictures

KINDS = ("empty", "wall", "agent", "it")
EMPTY, WALL, AGENT, IT = range(4)
COLOURS = np.array([(226, 211, 170), (90, 90, 90), (60, 110, 220), (220, 50, 40)], np.uint8)


class Tag:
    """`num_worlds` worlds in lockstep; world i of a vector is the single world of seed + i.

    Attributes:
        agents: names, in the order in which they act.
        num_actions: 4: up, down, left, right.
        observation_shape: (4 kinds * (2 * radius + 1)^2 + 1,), kind by kind, each a window in row-major order; the last
            entry tells whether the agent itself is "it".
        observation_dtype: `bool`.
        grid: kinds, uint8 [num_worlds, height, width], a view (`place` sets agents).
        it: which agent is "it", int64 [num_worlds].
        reward: of the turn if it ended now, float32 [num_worlds, num_agents].
        turn: number of the current turn, from 0; the episode ends when it is `max_turns`.
    """

    def __init__(
        self,
        num_worlds: int,
        num_agents: int = 5,
        height: int = 11,
        width: int = 11,
        radius: int = 4,
        max_turns: int = 20,
        turn_reward: float = 10.0,
    ) -> None:
        """Create them in the state after `reset(0)`.

        Args:
            num_worlds: number of worlds.
            num_agents: in each world.
            height: rows, the outer walls included.
            width: columns, the outer walls included.
            radius: how far an agent sees.
            max_turns: turns of an episode; the caller then resets.
            turn_reward: in each turn, for not being "it".

        Raises:
            EnvError: the settings are impossible.
        """
        name = "tag"
        grid.check(name, num_worlds, num_agents, height, width, radius, max_turns)
        self.num_worlds, self.max_turns = num_worlds, max_turns
        self.agents = grid.names(num_agents)
        self.num_actions = len(grid.MOVES)
        self._geometry = geometry = grid.Geometry(num_worlds, height, width, radius)
        self._window = geometry.window(radius)
        self.observation_shape = (len(KINDS) * len(self._window) + 1,)
        self.observation_dtype = "bool"
        self._turn_reward = np.float32(turn_reward)
        self._kinds = np.arange(len(KINDS), dtype=np.uint8)
        self._numbers = np.arange(num_agents)
        self._steps = geometry.steps
        self._free = grid.places(name, geometry, num_agents)
        self._layer = geometry.layer(WALL, "uint8")
        self.grid = geometry.inner(self._layer)
        self.reset(0)

    @property
    def cells(self) -> NDArray[np.int64]:
        """The agents' cells, (row, column), int64 [num_worlds, num_agents, 2]."""
        return self._geometry.cells(self._positions)

    def reset(self, seed: int) -> NDArray[np.bool_]:
        """Start an episode in every world: agents stand on random different cells, a random one is "it".

        Returns:
            The observations of the first turn, bool [num_worlds, num_agents, *shape].
        """
        count = len(self.agents)
        keys = draws.stream_keys(seed, self.num_worlds)
        self.it = (count * draws.uniforms(keys, draws.numbers(-1, count, 1))).astype(np.int64)
        self._positions = grid.scatter(self._layer, self._free, keys, count, self._marks())
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
        return grid.step(self, "tag", actions)

    @property
    def reward(self) -> NDArray[np.float32]:
        """See the class."""
        return self._turn_reward * (self._numbers != self.it[:, None])

    def entities_turn(self) -> None:
        """Begin the next turn; nothing else happens."""
        self.turn += 1

    def observe(self, agent: int | None = None) -> NDArray[np.bool_]:
        """Observations of all agents, bool [num_worlds, num_agents, *shape], or of one, bool [num_worlds, *shape]."""
        positions = self._positions if agent is None else self._positions[:, agent]
        seen = np.empty((*positions.shape, *self.observation_shape), bool)
        windows = seen[..., :-1].reshape(*positions.shape, len(KINDS), -1)  # a view: only the last axis is split
        grid.one_hot(self._layer, positions[..., None] + self._window, self._kinds, windows)
        seen[..., -1] = self._numbers == self.it[:, None] if agent is None else self.it == agent
        return seen

    def act(self, agent: int, actions: NDArray[np.int64]) -> None:
        """One agent's action in each world, int64 [num_worlds]."""
        position = self._positions[:, agent]
        target = position + self._steps[actions]
        is_it = self.it == agent
        free = self._layer[target] == EMPTY
        self._positions[:, agent] = grid.move(self._layer, position, target, free, np.where(is_it, IT, AGENT))
        self._hand_on(agent, np.flatnonzero(is_it))

    def place(self, cells: NDArray[np.int64], it: int) -> None:
        """Put all agents on other cells, (row, column) int64 [num_worlds or 1, num_agents, 2], and make one "it"."""
        self.it[:] = it
        self._positions = grid.put(self._layer, self._geometry, self._positions, cells, self._marks())

    def render(self, index: int = 0) -> NDArray[np.uint8]:
        """A picture of one world, rgb uint8 [16 * height, 16 * width, 3]; "it" is red, the others are blue."""
        return pictures.picture(COLOURS[self.grid[index]], self.cells[index])

    def _marks(self) -> NDArray[np.int64]:
        """The agents' kinds, [num_worlds, num_agents]."""
        return np.where(self._numbers == self.it[:, None], IT, AGENT)

    def _hand_on(self, agent: int, worlds: NDArray[np.int64]) -> None:
        """Make a neighbour "it" in those worlds where the agent is "it" and has one."""
        beside = self._positions[worlds, agent, None] + self._steps
        others = self._layer[beside] == AGENT
        caught = others.any(1)
        worlds, beside, others = worlds[caught], beside[caught], others[caught]
        victim = beside[np.arange(len(worlds)), others.argmax(1)]  # the first in the order of the moves
        self._layer[self._positions[worlds, agent]] = AGENT
        self._layer[victim] = IT
        self.it[worlds] = (self._positions[worlds] == victim[:, None]).argmax(1)
