"""Functions that the worlds share: padded grids of kinds, windows, moves, random numbers, pictures.

A layer is a flat array with the cells of all worlds, one world after another, each with `pad` cells around it. A
position is an index into it, so all worlds are handled in one NumPy call. `Geometry` converts (row, column) to
positions and back.

Each world has a stream of random numbers, which are computed at any index, not drawn one after another (`uniforms`):
world i of a vector seeded with `seed` has the same numbers as a single world seeded with `seed + i`. A NumPy generator
for each world would need a Python call for each world and turn.
"""

from __future__ import annotations

import colorsys
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.envs.spec import EnvError

Positions = NDArray[np.int64]
Keys = NDArray[np.uint64]

MOVES = ("up", "down", "left", "right")  # the first actions of every world, in this order
CELL_PIXELS = 16  # side of a cell in a picture; video encoders like multiples of 16

_GOLDEN, _MIX_1, _MIX_2 = (np.uint64(x) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


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


# Random numbers


def stream_keys(seed: int, num_worlds: int) -> Keys:
    """The keys of the streams `seed`, `seed + 1`, ..., uint64 [num_worlds]."""
    # Mixed, as streams of similar keys would be similar.
    return _mixed(np.arange(num_worlds, dtype=np.uint64) + np.uint64(seed % 2**64))


def numbers(turn: int, first: int, count: int) -> Keys:
    """Indices, uint64 [count], of the random numbers `first`, `first + 1`, ... of a turn; turn -1 is the reset."""
    return np.arange(count, dtype=np.uint64) + np.uint64(((turn + 1) << 32) + first)


def uniforms(keys: Keys, index: Keys) -> NDArray[np.float64]:
    """Random numbers in [0, 1) at an index of each stream; keys and indices broadcast.

    This is SplitMix64 (Steele, Lea, Flood 2014), which computes its n-th number without those before it.
    """
    return (_mixed(keys + index * _GOLDEN) >> np.uint64(11)) * 2.0**-53


def _mixed(z: Keys) -> Keys:
    z = z + _GOLDEN
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    return z ^ (z >> np.uint64(31))


def successes(keys: Keys, turn: int, first: int, trials: int, probability: float) -> tuple[Positions, Positions]:
    """Draw which of independent trials succeed.

    Args:
        keys: of the streams, uint64 [num_worlds].
        turn: whose random numbers are used.
        first: the first of these numbers; at most `trials + 1` more, rounded up to a block, are used.
        trials: number of trials of each world.
        probability: of the success of each trial.

    Returns:
        (world int64 [M], trial int64 [M]) of the M successes, ordered by world and trial.
    """
    if probability <= 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    # Drawn from success to success, as few trials succeed: the number of failures between two is geometric.
    expected = trials * probability
    block = min(trials + 1, int(expected + 5 * math.sqrt(expected)) + 2)
    reached = np.full((len(keys), 1), -1)
    found: list[NDArray[np.int64]] = []
    while reached.min() < trials:
        u = uniforms(keys[:, None], numbers(turn, first + block * len(found), block))
        if probability >= 1:
            failures = np.zeros(u.shape, np.int64)
        else:
            failures = np.minimum(np.log1p(-u) / math.log1p(-probability), trials).astype(np.int64)
        found.append(reached + np.cumsum(failures + 1, 1))
        reached = found[-1][:, -1:]
    trial = found[0] if len(found) == 1 else np.concatenate(found, 1)
    world, column = np.nonzero(trial < trials)
    return world, trial[world, column]


def draw_distinct(keys: Keys, first: int, candidates: Positions, count: int) -> Positions:
    """Draw different candidates in each world; every choice and order is equally likely.

    Args:
        keys: of the streams, uint64 [num_worlds].
        first: the first of `count` random numbers of the reset that are used.
        candidates: int64 [num_worlds, C].
        count: number of candidates to draw, at most C.

    Returns:
        int64 [num_worlds, count].
    """
    left = candidates.copy()
    u = uniforms(keys[:, None], numbers(-1, first, count))
    world = np.arange(len(left))
    for i in range(count):  # Fisher and Yates, stopped after the first `count`
        drawn = i + (u[:, i] * (left.shape[1] - i)).astype(np.int64)
        left[world, drawn], left[:, i] = left[:, i].copy(), left[world, drawn]
    return left[:, :count]


# Turns


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


# Pictures


def agent_colours(num_agents: int) -> NDArray[np.uint8]:
    """Different colours, uint8 [num_agents, 3], blue first."""
    hues = (0.6 + np.arange(num_agents) * 0.618034) % 1  # golden ratio: agents with similar numbers get different hues
    return np.array([[round(255 * x) for x in colorsys.hsv_to_rgb(hue, 0.75, 0.95)] for hue in hues], np.uint8)


def portrait(colours: NDArray[np.uint8], cells: NDArray[np.int64]) -> NDArray[np.uint8]:
    """As `picture`, with another colour for each agent on `cells`, which is written into `colours`."""
    row, column = cells.T
    colours[row, column] = agent_colours(len(cells))
    return picture(colours, cells)


def picture(colours: NDArray[np.uint8], framed: NDArray[np.int64]) -> NDArray[np.uint8]:
    """A picture uint8 [16 * height, 16 * width, 3].

    Args:
        colours: of the cells, uint8 [height, width, 3].
        framed: cells (row, column) int64 [N, 2] that get a black frame: the agents'.
    """
    drawn = colours.repeat(CELL_PIXELS, 0).repeat(CELL_PIXELS, 1)
    for row, column in framed * CELL_PIXELS:
        cell = drawn[row : row + CELL_PIXELS, column : column + CELL_PIXELS]
        cell[:2] = cell[-2:] = cell[:, :2] = cell[:, -2:] = 0
    return drawn
