"""Ludo for two or four players, many games at a time; for the interface see `trainer.envs.games`.

Rules. Every player has four tokens in base and brings them around the track of 52 squares into the goal; whoever has
all four there has won. Coordinates are a player's own: -1 base, 0 start, 0 .. 50 loop, 51 .. 55 home column, 56 goal.

- A throw: one die; after a six another, up to three; three sixes are void. The dice may be played in any order: an
  action is `4 * slot + token`, a slot being one of the first three pending dice. When none of these three can be
  played but a later one can, they go behind the others.
- A token leaves base (to 0) by a six only, and nothing moves past 56.
- Landing on a square with opponents' tokens sends all of them to base (there are no blocks), unless the square is
  safe: own 0, 8, 13, 21, 26, 34, 39, 47, the home column and the goal are, and so is for two players own 25, which the
  opponent's loop does not pass.
- A move that captures, or brings a token into the goal, gives one extra throw, added to the dice left. If it is void
  it adds nothing, and the dice left are still played.
- Without a legal move for any of the dice left these are lost, and the turn passes to the next seat, who throws. Seat 0
  throws first.

Rewards: `sparse`: the winner gets 1, every other player -1. `dense`: every event pays when it happens, whoever's
move it was (`ludo_rewards.DENSE`): the last move pays for the goal as well as for the win. `progress`: as `sparse`,
and every decision pays by how much it changes a seat's lead, 0 when all is over, so that an undiscounted game still
pays 1 or -1 and the best player stays the best (Ng, Harada and Russell 1999, shaping by a potential).

Dice are drawn by index from a stream for each game (`trainer.envs.worlds.draws.uniforms`), so that a game does not
depend on those beside it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainer.envs.actions import DiscreteAction
from trainer.envs.games import ludo_encodings, ludo_picture, ludo_rewards, ludo_track
from trainer.envs.games.ludo_rewards import BEHIND, DENSE, REWARDS
from trainer.envs.games.ludo_track import BASE, FACES, GOAL, NUM_SLOTS, NUM_TOKENS
from trainer.envs.games.rows import Rows, choice, chosen, look, require, to_advance
from trainer.envs.spec import EnvSpec, Leaf
from trainer.envs.state import set_state, state_of
from trainer.envs.worlds import draws

NAME = "ludo"
MAX_PENDING = 21  # dice, as a queue is an int64; two players can have 17, four will not in the life of the sun

_TARGETS = ludo_track.targets().reshape(-1)  # [cell * 8 + face]
_THROWS = ludo_track.throws()
_QUEUE_LENGTH = np.array([len(ludo_track.unpack(queue)) for queue in range(512)])
# By the first three dice: which faces are among them, face f as bit f - 1.
_FACES = np.array([sum(1 << x for x in {d - 1 for d in ludo_track.unpack(q)}) for q in range(512)], np.uint8)
_THROW_FACES = _FACES[_THROWS]
_LOW = np.array([0, 7, 63])  # the dice before a slot
_AHEAD = 4  # throws made of one random number; of 53 bits they use 31
_POWERS = 216.0 ** np.arange(1, _AHEAD + 1)[:, None]
_ALL_IN_GOAL = np.full(NUM_TOKENS, GOAL, np.uint8).view(np.uint32)[0]


def _of_pairs(table: NDArray[Any]) -> NDArray[Any]:
    """For two tokens' cells, side by side in memory and read as uint16: both entries of a table by cell, [..., 2]."""
    pairs = np.arange((GOAL + 1) * 257, dtype=np.uint16).view(np.uint8).reshape(-1, 2)
    return table[np.minimum(pairs, GOAL)]


_PAIR_FACES = np.bitwise_or.reduce(_of_pairs(ludo_track.legal_faces()), axis=1)
# By face and pair, which of both tokens it moves: two bools read as uint16, [face * number of pairs + pair].
_PAIR_LEGAL = np.concatenate(
    [
        np.ascontiguousarray(_of_pairs(ludo_track.targets()[:, face] != ludo_track.NOWHERE)).view(np.uint16).ravel()
        for face in range(FACES + 1)
    ]
)


class Ludo:
    """`num_games` games; the arrays and methods are those of `trainer.envs.games`.

    Attributes:
        num_actions: 12: 4 * slot + token.
        tokens: own coordinates, int64 [num_games, num_players, 4]; a copy.
    """

    def __init__(
        self, num_games: int, num_players: int = 2, reward: str = "sparse", encoding: str = "handcrafted",
        sort_tokens: bool = False,
    ) -> None:  # fmt: skip
        """Create them in the state after `reset(0)`.

        Args:
            num_games: number of games.
            num_players: 2 or 4.
            reward: one of `REWARDS`.
            encoding: one of `trainer.envs.games.ludo_encodings.ENCODINGS`.
            sort_tokens: number a player's tokens again after every move, from the farthest one: as tokens are alike,
                nothing is lost, and 24 positions become one.

        Raises:
            EnvError: the settings are impossible.
        """
        require(num_games >= 1, f"{NAME}: num_games={num_games} must be at least 1.")
        choice(NAME, "num_players", num_players, (2, 4))
        choice(NAME, "reward", reward, REWARDS)
        choice(NAME, "encoding", encoding, ludo_encodings.ENCODINGS)
        self.num_games, self.num_players = num_games, num_players
        self.num_actions = NUM_SLOTS * NUM_TOKENS
        self._sort_tokens = sort_tokens
        self._encoder = ludo_encodings.ENCODINGS[encoding](num_players)
        kind = "binary" if self._encoder.dtype == "bool" else "vector"
        leaf = Leaf("observation", (self._encoder.size,), self._encoder.dtype, kind)
        self.spec = EnvSpec(NAME, (leaf,), DiscreteAction(self.num_actions, has_mask=True))
        self._dense, self._progress = reward == "dense", reward == "progress"
        self._open = ludo_track.open_crossings(num_players)
        self._shaping = ludo_rewards.of_moves(num_players)

        n, p = num_games, num_players
        self.to_move = np.zeros(n, np.int64)
        self.action_mask = np.ones((n, self.num_actions), bool)
        self.rewards = np.zeros((n, p), np.float32)
        self.over = np.zeros(n, bool)
        self.winner = np.full(n, -1)
        self.length = np.zeros(n, np.int64)
        self._cells = np.zeros(n * p * NUM_TOKENS, np.uint8)
        self._fours = self._cells.view(np.uint32)  # [game * P + player]
        self._pairs = self._cells.view(np.uint16).reshape(-1, 2)
        self._queue = np.zeros(n, np.int64)  # pending dice, 3 bits each, the first lowest
        self._pending = np.zeros(n, np.int64)  # how many
        self._every = np.arange(n)
        self._keys = draws.stream_keys(0, n)
        self._drawn = np.zeros(n, np.uint64)  # random numbers used so far
        self._seen = {
            "observation": np.zeros((n, self._encoder.size), self._encoder.dtype),
            "action_mask": np.ones((n, self.num_actions), bool),
        }
        self.reset(0)

    @property
    def tokens(self) -> NDArray[np.int64]:
        """Own coordinates, -1 .. 56, int64 [num_games, num_players, 4]; a copy."""
        return self._cells.reshape(self.num_games, self.num_players, NUM_TOKENS).astype(np.int64) - 1

    def dice(self, index: int) -> list[int]:
        """A game's pending dice, the next ones first."""
        return ludo_track.unpack(int(self._queue[index]))

    def reset(self, seed: int | None = None) -> None:
        """Start every game; without a seed with its next dice."""
        if seed is not None:
            self._keys[:] = draws.stream_keys(seed, self.num_games)
            self._drawn[:] = 0
        self.reset_where(np.ones(self.num_games, bool))

    def reset_where(self, mask: NDArray[np.bool_]) -> None:
        """Start the games of a bool mask [N]."""
        self.rewards[:] = 0
        rows = np.flatnonzero(mask)
        self._cells.reshape(self.num_games, -1)[rows] = BASE
        self._queue[rows] = self._pending[rows] = 0
        self.over[rows], self.winner[rows], self.length[rows] = False, -1, 0
        self.to_move[rows] = self.num_players - 1  # from whom the turn passes to seat 0
        self._pass_on(rows)
        self._write_mask(rows)

    def step(self, action: NDArray[np.int64], where: NDArray[np.bool_] | None = None) -> None:
        """Advance games by one decision, as `trainer.envs.games` describes.

        Raises:
            EnvError: an action is illegal.
        """
        rows = to_advance(self._every, self.over, where)
        taken = chosen(NAME, action, self.action_mask, rows)
        self.rewards[:] = 0
        if not len(rows):
            return
        slot, token = taken >> 2, taken & 3
        player, seat = self._seats(rows)
        queue = self._queue.take(rows)
        low = _LOW.take(slot)
        face = queue >> 3 * slot & 7
        queue = queue & low | queue >> 3 & ~low
        moved = seat * NUM_TOKENS + token
        lead = self._lead(rows) if self._progress else None
        old = self._cells.take(moved)
        new = _TARGETS.take(old.astype(np.int64) << 3 | face)
        self._cells[moved] = new
        self.length[rows] += 1
        self._queue[rows] = queue
        self._pending[rows] -= 1

        if self._dense:
            self.rewards.reshape(-1)[seat] += self._shaping[old, new]
        bonus = new == GOAL
        won = self._fours.take(seat) == _ALL_IN_GOAL
        bonus |= self._capture(rows, player, new)
        bonus &= ~won
        if bonus.any():
            self._throw_extra(rows[bonus])
        if self._sort_tokens:
            cells = self._cells.reshape(self.num_games, self.num_players, NUM_TOKENS)
            cells[rows] = np.sort(cells[rows], 2)[..., ::-1]
        if lead is not None:
            self.rewards[rows] += self._lead(rows) * ~won[:, None] - lead
        if won.any():
            self._end(rows[won], player[won])
        self._go_on(rows if not won.any() else rows[~won])
        self._write_mask(rows)

    def observe(self, rows: Rows | None = None, seats: NDArray[np.int64] | None = None) -> dict[str, NDArray[Any]]:
        """What seats see; `trainer.envs.games` has the details, `trainer.envs.games.ludo_encodings` the encodings."""
        rows, seats, deciding, seen = look(self, self._every, self._seen, rows, seats)
        self._encoder.write(self.position(rows, seats, deciding), seen["observation"])
        return seen

    def position(
        self, rows: Rows, seats: NDArray[np.int64], deciding: NDArray[np.bool_] | None = None
    ) -> ludo_encodings.Position:
        """Positions for encodings and players; only seats that are `deciding` (by default all) see dice.

        Args:
            rows: int64 [M].
            seats: from which the games are seen, int64 [M].
            deciding: bool [M].
        """
        order = rows[:, None] * self.num_players + (seats[:, None] + np.arange(self.num_players)) % self.num_players
        cells = self._cells.reshape(-1, NUM_TOKENS).take(order.ravel(), 0)
        queue = self._queue.take(rows)
        if deciding is not None:
            queue = queue * deciding
        faces = queue[:, None] >> np.array([0, 3, 6]) & 7
        return ludo_encodings.Position(cells.reshape(len(rows), self.num_players, NUM_TOKENS), faces)

    def place(self, index: int, tokens: ArrayLike, to_move: int, dice: list[int]) -> None:
        """Set the position of a game, for tests and pictures.

        Args:
            index: which game.
            tokens: own coordinates [num_players, 4].
            to_move: the seat whose turn it is.
            dice: that are pending, in order; if no legal move is left the turn passes at once.

        Raises:
            EnvError: there is no such position.
        """
        placed = np.asarray(tokens)
        fits = placed.shape == (self.num_players, NUM_TOKENS) and placed.min() >= -1 and placed.max() <= GOAL - 1
        require(fits, f"{NAME}: tokens must be {self.num_players} x 4 coordinates from -1 to 56.")
        require(all(1 <= die <= FACES for die in dice) and len(dice) <= MAX_PENDING, f"{NAME}: dice={dice} cannot be.")
        require(0 <= to_move < self.num_players, f"{NAME}: there is no seat {to_move}.")
        require(not (placed == GOAL - 1).all(1).any(), f"{NAME}: this game would be over already.")
        self._cells.reshape(self.num_games, self.num_players, NUM_TOKENS)[index] = placed + 1
        self._queue[index], self._pending[index] = ludo_track.pack(dice), len(dice)
        self.over[index], self.winner[index], self.to_move[index] = False, -1, to_move
        rows = np.array([index])
        self._go_on(rows)
        self._write_mask(rows)

    def render(self, index: int = 0) -> NDArray[np.uint8]:
        """A picture of one game, rgb uint8 [360, 360, 3]."""
        return ludo_picture.picture(self.tokens[index], int(self.to_move[index]), self.dice(index)[:NUM_SLOTS])

    def text(self, index: int = 0) -> str:
        """One game as text; `ludo_picture.text` says how to read it."""
        return ludo_picture.text(self.tokens[index], int(self.to_move[index]), self.dice(index))

    def action_text(self, index: int, action: int) -> str:
        """An action of the one to move in words: which token by which die."""
        name = ludo_picture.token_name(int(self.to_move[index]), action % NUM_TOKENS)
        return f"{name} by {self.dice(index)[action // NUM_TOKENS]}"

    def state(self) -> dict[str, Any]:
        """The state of all games, as tensors and plain values."""
        return state_of(self)

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the `state` of another one."""
        set_state(self, state)

    def _seats(self, rows: Rows) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Who is to move, and its index into arrays of [game * P + player]."""
        player = self.to_move.take(rows)
        return player, rows * self.num_players + player

    def _movable(self, seat: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Faces that move any of a player's tokens, by bits, as [game * P + player]."""
        pairs = self._pairs.take(seat, 0)
        return _PAIR_FACES.take(pairs[..., 0]) | _PAIR_FACES.take(pairs[..., 1])

    def _capture(self, rows: Rows, player: NDArray[np.int64], new: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Send captured tokens back to base; returns which moves captured, bool [M]."""
        captured = np.zeros(len(rows), bool)
        for ahead in range(1, self.num_players):
            seat = rows * self.num_players + (player + ahead) % self.num_players
            hit = self._fours.take(seat).view(np.uint8).reshape(-1, NUM_TOKENS) == self._open[ahead].take(new)[:, None]
            caught = hit.view(np.uint32).ravel() != 0  # four bools at once
            if not caught.any():
                continue
            captured |= caught
            hit, seat = hit[caught], seat[caught]
            cells = self._cells.reshape(-1, NUM_TOKENS)
            cells[seat] = np.where(hit, BASE, cells[seat])
            if self._dense:
                count = hit.sum(1)
                paid = self.rewards.reshape(-1)
                paid[rows[caught] * self.num_players + player[caught]] += np.float32(DENSE["capture"]) * count
                paid[seat] += np.float32(DENSE["captured"]) * count
        return captured

    def _lead(self, rows: Rows) -> NDArray[np.float32]:
        """Share of the way that each seat has behind it, less that of the others in the mean, float32 [M, P]."""
        behind = BEHIND.take(self._cells.reshape(self.num_games, self.num_players, NUM_TOKENS)[rows]).sum(2)
        others = (behind.sum(1, keepdims=True) - behind) / np.float32(self.num_players - 1)
        lead: NDArray[np.float32] = behind - others
        return lead

    def _end(self, rows: Rows, winner: NDArray[np.int64]) -> None:
        """End the games that were won."""
        self.over[rows], self.winner[rows] = True, winner
        self._queue[rows] = self._pending[rows] = 0
        win, loss = (DENSE["win"], DENSE["loss"]) if self._dense else (1.0, -1.0)
        self.rewards[rows] += np.float32(loss)
        self.rewards[rows, winner] += np.float32(win - loss)

    def _go_on(self, rows: Rows) -> None:
        """Pass turns until the seat to move has a legal move."""
        _, seat = self._seats(rows)
        movable = self._movable(seat)
        queue = self._queue.take(rows)
        can = movable & _FACES.take(queue & 511) != 0
        if not can.all():
            stuck = ~can
            if (queue >= 512).any():
                stuck[stuck] = ~self._reorder(rows[stuck], movable[stuck])
            self._pass_on(rows[stuck])

    def _reorder(self, rows: Rows, movable: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Where none of the first three dice can be played but a later one can: these three go behind the others.

        Returns:
            which games have a die that can be played now, bool [M].
        """
        can = np.zeros(len(rows), bool)
        for i in np.flatnonzero(self._pending[rows] > NUM_SLOTS):  # hardly ever any
            dice = self.dice(rows[i])
            for _ in range(len(dice) // NUM_SLOTS):
                dice = dice[NUM_SLOTS:] + dice[:NUM_SLOTS]
                if any(movable[i] >> (die - 1) & 1 for die in dice[:NUM_SLOTS]):
                    self._queue[rows[i]], can[i] = ludo_track.pack(dice), True
                    break
        return can

    def _draw(self, rows: Rows) -> NDArray[np.int64]:
        """Four throws for each game, numbers 0 .. 215, int64 [4, M]."""
        drawn = self._drawn.take(rows)
        self._drawn[rows] = drawn + np.uint64(1)
        digits = np.floor(draws.uniforms(self._keys.take(rows), drawn) * _POWERS)
        digits[1:] -= 216.0 * digits[:-1]
        return digits.astype(np.int64)

    def _throw_extra(self, rows: Rows) -> None:
        """Add a throw to the dice left."""
        throw = _THROWS.take(self._draw(rows)[0], mode="clip")
        pending, more = self._pending.take(rows), _QUEUE_LENGTH.take(throw)
        throw[pending + more > MAX_PENDING] = more[pending + more > MAX_PENDING] = 0
        self._queue[rows] |= throw << 3 * pending
        self._pending[rows] = pending + more

    def _pass_on(self, rows: Rows) -> None:
        """Let the next seats throw, until one of each game can move."""
        ahead = np.arange(1, _AHEAD + 1)[:, None]
        while len(rows):
            player = (self.to_move.take(rows) + ahead) % self.num_players
            number = self._draw(rows)
            can = self._movable(rows * self.num_players + player) & _THROW_FACES.take(number, mode="clip") != 0
            first = can.argmax(0)
            column = np.arange(len(rows))
            throw = _THROWS.take(number[first, column], mode="clip")
            found = can[first, column]
            done = rows if found.all() else rows[found]
            throw = throw if found.all() else throw[found]
            self._queue[done], self._pending[done] = throw, _QUEUE_LENGTH.take(throw)
            # Where nobody could, four throws later it is the same seat's turn again: both 2 and 4 divide 4.
            self.to_move[done] = player[first, column][found]
            rows = rows[~found]

    def _write_mask(self, rows: Rows) -> None:
        _, seat = self._seats(rows)
        pairs = self._pairs.take(seat, 0)[:, None, :]
        faces = self._queue.take(rows)[:, None] >> np.array([0, 3, 6]) & 7
        legal = _PAIR_LEGAL.take(faces[..., None] * len(_PAIR_FACES) + pairs)
        mask = legal.reshape(len(rows), self.num_actions // 2).view(bool)
        over = self.over.take(rows)
        if over.any():
            mask[over] = True
        if len(rows) == self.num_games:
            self.action_mask[:] = mask
        else:
            self.action_mask[rows] = mask
