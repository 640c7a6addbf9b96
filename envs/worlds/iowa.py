"""Iowa: agents walk about and take cards of four decks; two decks have higher gains, but lose in the long run.

A turn (`Iowa.step` calls the methods in brackets):

1. [entities_turn] Every empty cell becomes, with `spawn_probability`, one of the decks A, B, C and D, each as likely.
2. [observe] All agents observe.
3. [act, for each agent in list order] up, down, left, right. Walls and agents block; entering any other cell takes the
   deck there, for a reward of its value. Each action takes effect before the next agent's.

A step is 3, then 1 and 2 of the next turn, whose observations it returns.

A deck's value is its gain, minus its loss with its probability, plus a bonus; it is drawn when the deck is taken. With
the defaults the mean is -0.15 for A and B, and 0.35 for C and D.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trainer.envs.worlds import draws, grid, pictures

KINDS = ("empty", "wall", "deck_a", "deck_b", "deck_c", "deck_d", "agent")
EMPTY, WALL, DECK_A, DECK_B, DECK_C, DECK_D, AGENT = range(7)
# (gain, probability of the loss, loss) of the decks A to D.
DECKS = ((1.0, 0.5, 2.5), (1.0, 0.1, 12.5), (0.5, 0.5, 0.5), (0.5, 0.1, 2.5))
COLOURS = np.array(
    [(226, 211, 170), (90, 90, 90), (210, 60, 50), (240, 150, 40), (70, 170, 80), (150, 90, 200), (0, 0, 0)], np.uint8
)


class Iowa:
    """`num_worlds` worlds in lockstep; world i of a vector is the single world of seed + i.

    Attributes:
        agents: names, in the order in which they act.
        num_actions: 4: up, down, left, right.
        observation_shape: (7 kinds * (2 * radius + 1)^2,), kind by kind, each a window in row-major order.
        observation_dtype: `bool`.
        grid: kinds, uint8 [num_worlds, height, width], a view that may be written to (`place` sets agents).
        reward: of the turn so far, float32 [num_worlds, num_agents].
        turn: number of the current turn, from 0; the episode ends when it is `max_turns`.
    """

    def __init__(
        self,
        num_worlds: int,
        num_agents: int = 2,
        height: int = 20,
        width: int = 20,
        radius: int = 2,
        max_turns: int = 100,
        spawn_probability: float = 0.01,
        decks: Sequence[Sequence[float]] = DECKS,
        bonus: float = 0.1,
        wall_reward: float = 0.0,
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
            decks: (gain, probability of the loss, loss) of A, B, C and D.
            bonus: added to the value of every deck.
            wall_reward: for moving against a wall.

        Raises:
            EnvError: the settings are impossible.
        """
        name = "iowa"
        grid.check(name, num_worlds, num_agents, height, width, radius, max_turns, spawn_probability=spawn_probability)
        grid.require(
            len(decks) == 4 and all(len(deck) == 3 and 0 <= deck[1] <= 1 for deck in decks),
            f"{name}: decks={decks} must be four times (gain, probability of the loss, loss).",
        )
        self.num_worlds, self.max_turns = num_worlds, max_turns
        self.agents = grid.names(num_agents)
        self.num_actions = len(grid.MOVES)
        self._geometry = geometry = grid.Geometry(num_worlds, height, width, radius)
        self._window = geometry.window(radius)
        self.observation_shape = (len(KINDS) * len(self._window),)
        self.observation_dtype = "bool"
        self._spawn_probability = spawn_probability
        # By kind: 0 for an empty cell, `wall_reward` without a loss for a wall.
        self._gain = np.zeros(len(KINDS), np.float32)
        self._loss, self._risk = np.zeros(len(KINDS), np.float32), np.zeros(len(KINDS))
        self._gain[WALL] = wall_reward
        for kind, (gain, risk, loss) in zip((DECK_A, DECK_B, DECK_C, DECK_D), decks, strict=True):
            self._gain[kind], self._risk[kind], self._loss[kind] = gain + bonus, risk, loss
        self._passable = np.array([kind not in ("wall", "agent") for kind in KINDS])
        self._kinds = np.arange(len(KINDS), dtype=np.uint8)
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
        """Start an episode in every world: no decks, agents stand on random different cells.

        Returns:
            The observations of the first turn, after `entities_turn`, bool [num_worlds, num_agents, *shape].
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
        return grid.step(self, "iowa", actions)

    def entities_turn(self) -> None:
        """Begin the next turn: decks appear on empty cells."""
        self.turn += 1
        self.reward = np.zeros((self.num_worlds, len(self.agents)), np.float32)
        # `act` uses later random numbers than this.
        grid.spawn(self._layer, self._free, self._keys, self.turn, self._spawn_probability, DECK_A, 4)

    def observe(self, agent: int | None = None) -> NDArray[np.bool_]:
        """Observations of all agents, bool [num_worlds, num_agents, *shape], or of one, bool [num_worlds, *shape]."""
        return grid.look(self._layer, self._positions, agent, self._window, self._kinds)

    def act(self, agent: int, actions: NDArray[np.int64]) -> None:
        """One agent's action in each world, int64 [num_worlds]; its reward is added to `reward[:, agent]`."""
        position = self._positions[:, agent]
        target = position + self._steps[actions]
        found = self._layer[target]
        lost = draws.uniforms(self._keys, draws.numbers(self.turn, 2**31 + 2**30 + agent, 1)) < self._risk[found]
        self.reward[:, agent] += self._gain[found] - self._loss[found] * lost
        self._positions[:, agent] = grid.move(self._layer, position, target, self._passable[found], AGENT)

    def place(self, cells: NDArray[np.int64]) -> None:
        """Put the agents on other cells, (row, column) int64 [num_worlds or 1, num_agents, 2]; for scenes, tests."""
        self._positions = grid.put(self._layer, self._geometry, self._positions, cells, AGENT)

    def render(self, index: int = 0) -> NDArray[np.uint8]:
        """A picture of one world, rgb uint8 [16 * height, 16 * width, 3]; every agent has a colour of its own."""
        return pictures.portrait(COLOURS[self.grid[index]], self.cells[index])
