"""Cleanup: apples grow while the river is clean, but who cleans it leaves the apples to the others.

The top third, with its outer walls, is river, the bottom third orchard; between them lies sand, with an arm of the
river, two cells wide, at a third of the width. There are three layers: objects, agents and beams.

A turn (`Cleanup.step` calls the methods in brackets):

1. [entities_turn] River cells become polluted; then, if at most `pollution_limit` of the river is polluted, orchard
   cells grow an apple (also below an agent, which must enter the cell again to take it).
2. [observe] All agents observe.
3. [act, for each agent in list order] up, down, left, right, clean, zap. A move turns the agent, even if a wall or an
   agent blocks it. Entering a cell with an apple takes it, for a reward. A beam has three rays of `beam_reach` cells:
   one from the cell before the agent, and one from the cell on each side of it, all in the direction that it faces;
   each stops at a wall. A clean beam turns polluted cells into river at once. Of several beams in a cell the newest
   counts.

A beam lasts from its agent's action to that agent's next one, so every agent sees it once and acts in it once. An agent
that stands in a zap beam after its action pays `zap_cost`. A step returns the observations of the next turn.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainer.envs.worlds import draws, grid, pictures

KINDS = ("wall", "river", "polluted", "sand", "orchard", "apple", "agent", "clean", "zap")
WALL, RIVER, POLLUTED, SAND, ORCHARD, APPLE, AGENT, CLEAN, ZAP = range(9)
ACTIONS = (*grid.MOVES, "clean", "zap")
POSITION_SCALES = 3
DOWN = 1  # where agents look at the start
COLOURS = np.array(
    [(90, 90, 90), (80, 150, 220), (110, 100, 60), (226, 211, 170), (110, 170, 90), (210, 40, 40), (0, 0, 0)]
    + [(170, 240, 250), (250, 220, 60)],
    np.uint8,
)


class Cleanup:
    """`num_worlds` worlds in lockstep; world i of a vector is the single world of seed + i.

    Attributes:
        agents: names, in the order in which they act.
        num_actions: 6: up, down, left, right, clean, zap.
        observation_shape: (9 kinds * (2 * radius + 1)^2 + 12,), kind by kind, each a window in row-major order, and the
            position: sin and cos of pi * 2^k * row / (height - 1) for k = 0, 1, 2, then the same of the column.
        observation_dtype: `float32`.
        objects: kinds wall .. apple, uint8 [num_worlds, height, width], a view that may be written to.
        facing: where agents look, as a move's number, int64 [num_worlds, num_agents].
        reward: of the turn so far, float32 [num_worlds, num_agents].
        turn: number of the current turn, from 0; the episode ends when it is `max_turns`.
    """

    def __init__(
        self, num_worlds: int, num_agents: int = 10, height: int = 21, width: int = 31, radius: int = 5,
        max_turns: int = 100, pollution_probability: float = 0.009, apple_probability: float = 0.002,
        pollution_limit: float = 0.5, initial_apples: int = 20, beam_reach: int = 3, apple_reward: float = 1.0,
        zap_cost: float = 1.0,
    ) -> None:  # fmt: skip
        """Create them in the state after `reset(0)`.

        Args:
            num_worlds: number of worlds.
            num_agents: in each world.
            height: rows, the outer walls included.
            width: columns, the outer walls included.
            radius: how far an agent sees.
            max_turns: turns of an episode; the caller then resets.
            pollution_probability: of each river cell in each turn.
            apple_probability: of each orchard cell in each turn.
            pollution_limit: largest polluted share of the river at which apples grow.
            initial_apples: number of apples at the start, on random different orchard cells.
            beam_reach: cells that a beam reaches ahead.
            apple_reward: for taking an apple.
            zap_cost: of standing in a zap beam.

        Raises:
            EnvError: the settings are impossible.
        """
        check(num_worlds, num_agents, height, width, radius, max_turns, beam_reach, pollution_limit=pollution_limit,
              pollution_probability=pollution_probability, apple_probability=apple_probability)  # fmt: skip
        self.num_worlds, self.max_turns = num_worlds, max_turns
        self.agents = grid.names(num_agents)
        self.num_actions = len(ACTIONS)
        self._geometry = geometry = grid.Geometry(num_worlds, height, width, max(radius, beam_reach))
        self._window = geometry.window(radius)
        self.observation_shape = (len(KINDS) * len(self._window) + 4 * POSITION_SCALES,)
        self.observation_dtype = "float32"
        self._pollution_probability, self._apple_probability = pollution_probability, apple_probability
        self._pollution_limit, self._initial_apples = pollution_limit, initial_apples
        self._apple_reward, self._zap_cost = np.float32(apple_reward), np.float32(zap_cost)
        self._object_kinds = np.arange(AGENT, dtype=np.uint8)  # all before the agent
        self._steps = np.append(geometry.steps, [0, 0])  # beams do not move
        self._rays = _rays(geometry, beam_reach)
        self._position_code = _position_code(geometry)

        ground = plan(height, width)
        self._ground = np.pad(ground, geometry.pad, constant_values=WALL).ravel()
        self._river, self._orchard, self._sand = (geometry.where(ground == kind) for kind in (RIVER, ORCHARD, SAND))
        check_fit(geometry, num_agents, self._sand.shape[1], initial_apples, self._orchard.shape[1])
        self._objects = geometry.layer(WALL, "uint8")
        self.objects = geometry.inner(self._objects)
        self._bodies = geometry.layer(0, "uint8")  # 1 where an agent stands
        self._beams = geometry.layer(0, "uint32")  # 0, or 1 + 2 * agent for its clean, 2 + 2 * agent for its zap beam
        self.reset(0)

    @property
    def cells(self) -> NDArray[np.int64]:
        """The agents' cells, (row, column), int64 [num_worlds, num_agents, 2]."""
        return self._geometry.cells(self._positions)

    @property
    def beams(self) -> NDArray[np.uint8]:
        """Beams: 0, `CLEAN` or `ZAP`, uint8 [num_worlds, height, width]; a copy."""
        beams = self._geometry.inner(self._beams)
        return (CLEAN * (beams % 2) + ZAP * _is_zap(beams)).astype(np.uint8)

    @property
    def polluted_share(self) -> NDArray[np.float64]:
        """The polluted share of the river, float64 [num_worlds]."""
        return (self._objects[self._river] == POLLUTED).mean(1)

    def reset(self, seed: int) -> NDArray[np.float32]:
        """Start an episode in every world: a clean river, some apples, agents on random different cells of the sand.

        Returns:
            The observations of the first turn, after `entities_turn`, float32 [num_worlds, num_agents, *shape].
        """
        count = len(self.agents)
        self._keys = draws.stream_keys(seed, self.num_worlds)
        self._objects.reshape(self.num_worlds, -1)[:] = self._ground
        self._bodies[:] = 0
        self._beams[:] = 0
        self._positions = draws.draw_distinct(self._keys, 0, self._sand, count)
        self._bodies[self._positions] = 1
        self._objects[draws.draw_distinct(self._keys, count, self._orchard, self._initial_apples)] = APPLE
        self.facing = np.full((self.num_worlds, count), DOWN)
        self._fired = np.zeros((count, self.num_worlds, self._rays[0].size), np.int64)
        self.turn = -1
        self.entities_turn()
        return self.observe()

    def step(self, actions: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Take the actions of a turn, and observe the next one.

        Args:
            actions: int64 [num_worlds, num_agents].

        Returns:
            (observation float32 [num_worlds, num_agents, *shape], reward float32 [num_worlds, num_agents]), new arrays.

        Raises:
            EnvError: an action does not exist.
        """
        return grid.step(self, "cleanup", actions)

    def entities_turn(self) -> None:
        """Begin the next turn: the river is polluted, then apples grow."""
        self.turn += 1
        self.reward = np.zeros((self.num_worlds, len(self.agents)), np.float32)
        river, orchard = self._river.shape[1], self._orchard.shape[1]
        world, cell = draws.successes(self._keys, self.turn, 0, river, self._pollution_probability)
        self._objects[self._river[world, cell]] = POLLUTED
        grows = self.polluted_share <= self._pollution_limit
        # From 2**31 on, as the river may use the random numbers before.
        world, cell = draws.successes(self._keys, self.turn, 2**31, orchard, self._apple_probability)
        self._objects[self._orchard[world, cell][grows[world]]] = APPLE

    def observe(self, agent: int | None = None) -> NDArray[np.float32]:
        """Observations, float32 [num_worlds, num_agents, *shape], or of one agent, float32 [num_worlds, *shape]."""
        positions = self._positions if agent is None else self._positions[:, agent]
        seen = np.empty((*positions.shape, *self.observation_shape), np.float32)
        code = 4 * POSITION_SCALES
        kinds = seen[..., :-code].reshape(*positions.shape, len(KINDS), -1)  # a view: only the last axis is split
        windows = positions[..., None] + self._window
        grid.one_hot(self._objects, windows, self._object_kinds, kinds[..., :AGENT, :])
        kinds[..., AGENT, :] = self._bodies[windows]
        beams = self._beams[windows]
        kinds[..., CLEAN, :] = beams % 2
        kinds[..., ZAP, :] = _is_zap(beams)
        seen[..., -code:] = self._position_code[positions % self._geometry.size]
        return seen

    def act(self, agent: int, actions: NDArray[np.int64]) -> None:
        """One agent's action in each world, int64 [num_worlds]; its reward is added to `reward[:, agent]`."""
        self._end_beams(agent)
        moves = actions < len(grid.MOVES)
        self.facing[moves, agent] = actions[moves]
        shooters = np.flatnonzero(~moves)
        if len(shooters):
            self._fire(agent, shooters, actions[shooters] == ACTIONS.index("zap"))
        position = self._positions[:, agent]
        target = position + self._steps[actions]
        free = (self._objects[target] != WALL) & (self._bodies[target] == 0)
        eats = free & (self._objects[target] == APPLE)
        self._objects[target[eats]] = ORCHARD
        position = grid.move(self._bodies, position, target, free, 1)
        self._positions[:, agent] = position
        self.reward[:, agent] += self._apple_reward * eats - self._zap_cost * _is_zap(self._beams[position])

    def place(self, cells: NDArray[np.int64]) -> None:
        """Put the agents on other cells, (row, column) int64 [num_worlds or 1, num_agents, 2]; for scenes, tests."""
        self._positions = grid.put(self._bodies, self._geometry, self._positions, cells, 1)

    def render(self, index: int = 0) -> NDArray[np.uint8]:
        """A picture of one world, rgb uint8 [16 * height, 16 * width, 3]; every agent has a colour of its own."""
        beams = self.beams[index]
        return pictures.portrait(COLOURS[np.where(beams > 0, beams, self.objects[index])], self.cells[index])

    def _end_beams(self, agent: int) -> None:
        fired = self._fired[agent]
        beams = self._beams[fired]
        self._beams[fired[(beams == 1 + 2 * agent) | (beams == 2 + 2 * agent)]] = 0  # not those of newer beams

    def _fire(self, agent: int, worlds: NDArray[np.int64], zaps: NDArray[np.bool_]) -> None:
        rays = self._positions[worlds, agent, None, None] + self._rays[self.facing[worlds, agent]]
        reached = np.logical_and.accumulate(self._objects[rays] != WALL, -1)
        self._beams[rays[reached]] = np.broadcast_to(1 + 2 * agent + zaps[:, None, None], rays.shape)[reached]
        cleaned = rays[reached & ~zaps[:, None, None]]
        self._objects[cleaned[self._objects[cleaned] == POLLUTED]] = RIVER
        self._fired[agent, worlds] = rays.reshape(len(worlds), -1)


def check(
    num_worlds: int, num_agents: int, height: int, width: int, radius: int, max_turns: int, beam_reach: int,
    **shares: float,
) -> None:  # fmt: skip
    """Refuse settings of which no world can be made; `shares` are probabilities and shares by name.

    Raises:
        EnvError: in one sentence.
    """
    grid.check("cleanup", num_worlds, num_agents, height, width, radius, max_turns, **shares)
    grid.require(beam_reach >= 0, f"cleanup: beam_reach={beam_reach} must not be negative.")
    grid.require(
        height >= 6 and width >= 5,
        f"cleanup: {height} x {width} has no room for river, sand and orchard; make it 6 x 5 or more.",
    )


def check_fit(geometry: grid.Geometry, num_agents: int, sand: int, initial_apples: int, orchard: int) -> None:
    """Refuse more agents than there are cells of `sand`, or more apples than cells of `orchard`.

    Raises:
        EnvError: in one sentence.
    """
    world = f"of a {geometry.height} x {geometry.width} world."
    grid.require(num_agents <= sand, f"cleanup: {num_agents} agents do not fit on the {sand} cells of sand {world}")
    grid.require(
        0 <= initial_apples <= orchard,
        f"cleanup: initial_apples={initial_apples} do not fit on the {orchard} orchard cells {world}",
    )


def plan(height: int, width: int) -> NDArray[np.uint8]:
    """The kinds of the ground, uint8 [height, width]: walls, river, sand and orchard."""
    third, arm = height // 3, width // 3
    ground = np.full((height, width), SAND, np.uint8)
    ground[:third] = RIVER
    ground[third : height - third, arm : arm + 2] = RIVER
    ground[height - third :] = ORCHARD
    ground[~grid.walled(height, width)] = WALL
    return ground


def _is_zap(beams: NDArray[np.uint32]) -> NDArray[np.bool_]:
    return (beams > 0) & (beams % 2 == 0)


def _rays(geometry: grid.Geometry, reach: int) -> NDArray[np.int64]:
    """Differences of positions from an agent to the cells of its beam, int64 [4 directions, 3 rays, reach]."""
    steps = geometry.steps
    ahead = np.arange(reach)
    return np.array(
        [
            [step * (ahead + 1), side + step * ahead, -side + step * ahead]
            for step, side in zip(steps, steps[[2, 2, 0, 0]], strict=True)
        ]
    ).reshape(4, 3, reach)


def _position_code(geometry: grid.Geometry) -> NDArray[np.float32]:
    """The code of every cell of a world, float32 [geometry.size, 12]; zero in the padding."""
    axes = []
    for axis, length in enumerate((geometry.height, geometry.width)):
        place = np.arange(length) / (length - 1)
        # Half a wave over the whole axis, which distinguishes all cells; then one and two waves.
        angles = np.pi * 2.0 ** np.arange(POSITION_SCALES) * place[:, None]
        code = np.concatenate([np.sin(angles), np.cos(angles)], 1)
        axes.append(np.expand_dims(code, 1 - axis))
    shape = (geometry.height, geometry.width, 2 * POSITION_SCALES)
    codes = np.concatenate([np.broadcast_to(axis, shape) for axis in axes], -1)
    pad = geometry.pad
    return np.pad(codes, ((pad, pad), (pad, pad), (0, 0))).reshape(geometry.size, -1).astype(np.float32)
