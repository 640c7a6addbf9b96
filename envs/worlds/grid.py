"""Functions that the worlds share: padded grids of kinds, windows, moves.

A layer is a flat array with the cells of all worlds, one world after another, each with `pad` cells around it. A
position is an index into it, so all worlds are handled in one NumPy call. `Geometry` converts (row, column) to
positions and back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.envs.spec import EnvError
from trainer.envs.worlds.draws import Keys, Positions, draw_distinct, numbers, successes, uniforms

MOVES = ("up", "down", "left", "right")  # the first actions of every world, in this order


@dataclass(frozen=True)
class Geometry:
    """The places of cells in a flat layer.

    Args:
        num_worlds: number of worlds in the layer.
        height: rows of a world, its outer walls included.
        width: columns of a world, its outer walls included.
        pad: cells around each world, so that a window or a beam at its border stays within the array.
    """

    num_worlds: int
    height: int
    width: int
    pad: int

    @property
    def stride(self) -> int:
        """Difference of positions between a cell and the one below it."""
        return self.width + 2 * self.pad

    @property
    def size(self) -> int:
        """Number of cells of a world with its padding."""
        return (self.height + 2 * self.pad) * self.stride

    @property
    def steps(self) -> Positions:
        """Difference of positions for each of `MOVES`, int64 [4]."""
        return np.array([-self.stride, self.stride, -1, 1])

    def layer(self, fill: int, dtype: str) -> NDArray[Any]:
        """A flat layer [num_worlds * size] full of `fill`."""
        return np.full(self.num_worlds * self.size, fill, dtype)

    def inner(self, layer: NDArray[Any]) -> NDArray[Any]:
        """A layer without padding, a view [num_worlds, height, width]."""
        pad = self.pad
        whole = layer.reshape(self.num_worlds, self.height + 2 * pad, self.stride)
        return whole[:, pad : pad + self.height, pad : pad + self.width]

    def positions(self, cells: NDArray[np.int64]) -> Positions:
        """Positions int64 [num_worlds, ...] of cells (row, column) int64 [num_worlds or 1, ..., 2]."""
        within = (cells[..., 0] + self.pad) * self.stride + cells[..., 1] + self.pad
        first = np.arange(self.num_worlds) * self.size
        return first.reshape(-1, *[1] * (within.ndim - 1)) + within

    def cells(self, positions: Positions) -> NDArray[np.int64]:
        """Cells (row, column) int64 [..., 2] of positions int64 [...]."""
        row, column = np.divmod(positions % self.size, self.stride)
        return np.stack([row - self.pad, column - self.pad], -1)

    def where(self, mask: NDArray[np.bool_]) -> Positions:
        """Positions int64 [num_worlds, C] of the C cells of a bool mask [height, width], in row-major order."""
        return self.positions(np.argwhere(mask)[None])

    def window(self, radius: int) -> Positions:
        """Differences of positions from a cell to those of its window, in row-major order, int64 [(2r+1)^2]."""
        side = np.arange(-radius, radius + 1)
        return (side[:, None] * self.stride + side).ravel()


def walled(height: int, width: int) -> NDArray[np.bool_]:
    """Which cells are within the outer walls, bool [height, width]."""
    free = np.zeros((height, width), bool)
    free[1:-1, 1:-1] = True
    return free


def require(holds: bool, sentence: str) -> None:
    """Refuse impossible settings.

    Raises:
        EnvError: `sentence`, when it does not hold.
    """
    if not holds:
        raise EnvError(sentence)


def check(
    name: str, num_worlds: int, num_agents: int, height: int, width: int, radius: int, max_turns: int, **shares: float
) -> None:
    """Refuse impossible settings.

    Args:
        name: of the world.
        num_worlds: at least 1.
        num_agents: at least 1.
        height: at least 3: two walls and a row between them.
        width: as `height`.
        radius: at least 0.
        max_turns: at least 1.
        shares: probabilities and shares by name, each from 0 to 1.

    Raises:
        EnvError: in one sentence.
    """
    require(min(num_worlds, num_agents, max_turns) >= 1, f"{name}: num_worlds, num_agents and max_turns start at 1.")
    require(min(height, width) >= 3, f"{name}: {height} x {width} has no cell within its walls; make it 3 x 3 or more.")
    require(radius >= 0, f"{name}: radius={radius} must not be negative.")
    for key, value in shares.items():
        require(0 <= value <= 1, f"{name}: {key}={value} must lie between 0 and 1.")


def names(num_agents: int) -> tuple[str, ...]:
    """Names of the agents, in the order in which they act."""
    return tuple(f"agent_{i}" for i in range(num_agents))


def places(name: str, geometry: Geometry, num_agents: int) -> Positions:
    """Positions of the cells within the outer walls, int64 [num_worlds, cells].

    Raises:
        EnvError: there are more agents than cells.
    """
    free = geometry.where(walled(geometry.height, geometry.width))
    require(
        num_agents <= free.shape[1],
        f"{name}: {num_agents} agents do not fit within the walls of {geometry.height} x {geometry.width} cells.",
    )
    return free


def check_actions(name: str, actions: NDArray[np.int64], num_actions: int) -> None:
    """Refuse actions that do not exist.

    Raises:
        EnvError: in one sentence.
    """
    # NumPy would take a negative index from the table's end, without an error.
    if actions.min() < 0 or actions.max() >= num_actions:
        wrong = actions[(actions < 0) | (actions >= num_actions)][0]
        raise EnvError(f"{name}: action {wrong} does not exist; actions are 0 to {num_actions - 1}.")


def step(world: Any, name: str, actions: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """Take the actions of a turn, one agent after another, and observe the next turn.

    Args:
        world: any world of this package.
        name: of the world, for the error.
        actions: int64 [num_worlds, num_agents].

    Returns:
        (observation [num_worlds, num_agents, *shape], reward float32 [num_worlds, num_agents]), new arrays.

    Raises:
        EnvError: an action does not exist.
    """
    check_actions(name, actions, world.num_actions)
    for agent in range(len(world.agents)):
        world.act(agent, actions[:, agent])
    reward = world.reward
    world.entities_turn()
    return world.observe(), reward


def scatter(layer: NDArray[np.uint8], free: Positions, keys: Keys, count: int, mark: Any) -> Positions:
    """Clear the free cells and put agents on random different ones of them.

    Args:
        layer: of kinds; 0 is an empty cell.
        free: positions of the free cells, int64 [num_worlds, C].
        keys: of the streams, whose first `count` random numbers of the reset are used.
        count: number of agents in each world.
        mark: their kind, a number or uint8 [num_worlds, count].

    Returns:
        Positions of the agents, int64 [num_worlds, count].
    """
    layer[free] = 0
    positions = draw_distinct(keys, 0, free, count)
    layer[positions] = mark
    return positions


def put(
    layer: NDArray[np.uint8], geometry: Geometry, positions: Positions, cells: NDArray[np.int64], mark: Any
) -> Positions:
    """Move agents from their positions to other cells; the old cells become empty (0).

    Args:
        layer: of kinds.
        geometry: of the layer.
        positions: of the agents, int64 [num_worlds, num_agents].
        cells: (row, column) of the new cells, int64 [num_worlds or 1, num_agents, 2].
        mark: the agents' kind, a number or uint8 [num_worlds, num_agents].

    Returns:
        The new positions, int64 [num_worlds, num_agents].
    """
    layer[positions] = 0
    positions = geometry.positions(cells)
    layer[positions] = mark
    return positions


def spawn(
    layer: NDArray[np.uint8], free: Positions, keys: Keys, turn: int, probability: float, first: int, kinds: int
) -> None:
    """Let each empty cell (0) become, with `probability`, one of the kinds `first` .. `first + kinds - 1`."""
    world, cell = successes(keys, turn, 0, free.shape[1], probability)
    position = free[world, cell]
    empty = layer[position] == 0
    world, cell, position = world[empty], cell[empty], position[empty]
    # From 2**31 on, as `successes` may use the numbers before.
    u = uniforms(keys[world], cell.astype(np.uint64) + numbers(turn, 2**31, 1))
    layer[position] = first + (kinds * u).astype(np.uint8)


def move(
    layer: NDArray[np.uint8], position: Positions, target: Positions, free: NDArray[np.bool_], mark: Any
) -> Positions:
    """Move one agent of each world; it replaces what is in the layer at its new cell.

    Args:
        layer: of the agents; 0 is an empty cell.
        position: of the agent, int64 [num_worlds].
        target: position that it moves to, int64 [num_worlds].
        free: whether it may move there, bool [num_worlds]; else it stays.
        mark: the agent's kind, a number or uint8 [num_worlds].

    Returns:
        The new position, int64 [num_worlds].
    """
    new = np.where(free, target, position)
    layer[position] = 0
    layer[new] = mark
    return new


def one_hot(layer: NDArray[np.uint8], windows: Positions, kinds: NDArray[np.uint8], out: NDArray[Any]) -> None:
    """Write the kinds in windows as one-hot arrays.

    Args:
        layer: of kinds.
        windows: positions, int64 [..., cells].
        kinds: the kinds to be shown, uint8 [kinds].
        out: [..., kinds, cells].
    """
    np.equal(layer[windows][..., None, :], kinds[:, None], out=out)


def look(
    layer: NDArray[np.uint8], positions: Positions, agent: int | None, window: Positions, kinds: NDArray[np.uint8]
) -> NDArray[np.bool_]:
    """The windows of all agents one-hot, bool [num_worlds, num_agents, kinds * cells], or those of one agent."""
    positions = positions if agent is None else positions[:, agent]
    seen = np.empty((*positions.shape, len(kinds), len(window)), bool)
    one_hot(layer, positions[..., None] + window, kinds, seen)
    return seen.reshape(*positions.shape, -1)
