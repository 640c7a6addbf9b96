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
from trainer.envs.games import ludo_dice, ludo_encodings, ludo_picture, ludo_rewards, ludo_turns
from trainer.envs.games.ludo_board import Board
from trainer.envs.games.ludo_dice import Dice
from trainer.envs.games.ludo_rewards import DENSE, REWARDS
from trainer.envs.games.ludo_track import BASE, GOAL, NUM_SLOTS, NUM_TOKENS
from trainer.envs.games.rows import Rows, choice, chosen, look, require, to_advance
from trainer.envs.spec import EnvSpec, Leaf
from trainer.envs.state import set_state, state_of

NAME = "ludo"


class Ludo:
    """`num_games` games; the arrays and methods are those of `trainer.envs.games`."""

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
        self.num_actions = NUM_SLOTS * NUM_TOKENS  # 4 * slot + token
        self._sort_tokens = sort_tokens
        self._encoder = ludo_encodings.ENCODINGS[encoding](num_players)
        kind = "binary" if self._encoder.dtype == "bool" else "vector"
        leaf = Leaf("observation", (self._encoder.size,), self._encoder.dtype, kind)
        self.spec = EnvSpec(NAME, (leaf,), DiscreteAction(self.num_actions, has_mask=True))
        self._dense, self._progress = reward == "dense", reward == "progress"
        self._shaping = ludo_rewards.of_moves(num_players)

        n, p = num_games, num_players
        self.to_move = np.zeros(n, np.int64)
        self.action_mask = np.ones((n, self.num_actions), bool)
        self.rewards = np.zeros((n, p), np.float32)
        self.over = np.zeros(n, bool)
        self.winner = np.full(n, -1)
        self.length = np.zeros(n, np.int64)
        self._board, self._dice = Board(n, p), Dice(n)
        self._every = np.arange(n)
        self._seen = {
            "observation": np.zeros((n, self._encoder.size), self._encoder.dtype),
            "action_mask": np.ones((n, self.num_actions), bool),
        }
        self.reset(0)

    @property
    def tokens(self) -> NDArray[np.int64]:
        """Own coordinates, -1 .. 56, int64 [num_games, num_players, 4]; a copy."""
        return self._board.of_games().astype(np.int64) - 1

    def dice(self, index: int) -> list[int]:
        """A game's pending dice, the next ones first."""
        return self._dice.of(index)

    def reset(self, seed: int | None = None) -> None:
        """Start every game; without a seed with its next dice."""
        if seed is not None:
            self._dice.seed(seed)
        self.reset_where(np.ones(self.num_games, bool))

    def reset_where(self, mask: NDArray[np.bool_]) -> None:
        """Start the games of a bool mask [N]."""
        self.rewards[:] = 0
        rows = np.flatnonzero(mask)
        self._board.of_games()[rows] = BASE
        self._dice.clear(rows)
        self.over[rows], self.winner[rows], self.length[rows] = False, -1, 0
        self.to_move[rows] = self.num_players - 1  # from whom the turn passes to seat 0
        ludo_turns.pass_on(self._board, self._dice, self.to_move, rows)
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
        board, dice = self._board, self._dice
        player = self.to_move.take(rows)
        seat = rows * self.num_players + player
        lead = ludo_rewards.lead(board.of_games()[rows]) if self._progress else None
        old, new = board.move(seat, taken & 3, dice.take(rows, taken >> 2))
        self.length[rows] += 1
        if self._dense:
            self.rewards.reshape(-1)[seat] += self._shaping[old, new]
        won = board.won(seat)
        bonus = (self._capture(rows, player, new) | (new == GOAL)) & ~won
        if bonus.any():
            dice.throw_extra(rows[bonus])
        if self._sort_tokens:
            board.sort(rows)
        if lead is not None:
            self.rewards[rows] += ludo_rewards.lead(board.of_games()[rows]) * ~won[:, None] - lead
        if won.any():
            self._end(rows[won], player[won])
        ludo_turns.go_on(board, dice, self.to_move, rows if not won.any() else rows[~won])
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
        queue = self._dice.queue.take(rows)
        if deciding is not None:
            queue = queue * deciding
        return ludo_encodings.Position(self._board.seen_from(rows, seats), ludo_dice.slots(queue))

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
        require(0 <= to_move < self.num_players, f"{NAME}: there is no seat {to_move}.")
        self._board.put(index, tokens)
        self._dice.put(index, dice)
        self.over[index], self.winner[index], self.to_move[index] = False, -1, to_move
        rows = np.array([index])
        ludo_turns.go_on(self._board, self._dice, self.to_move, rows)
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
        return state_of(self, self._board, self._dice)

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the `state` of another one."""
        set_state(self, state, self._board, self._dice)

    def _capture(self, rows: Rows, player: NDArray[np.int64], new: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Send captured tokens back to base, and pay for them; returns which moves captured, bool [M]."""
        captured = np.zeros(len(rows), bool)
        for caught, seat, count in self._board.capture(rows, player, new):
            captured |= caught
            if self._dense:
                paid = self.rewards.reshape(-1)
                paid[rows[caught] * self.num_players + player[caught]] += np.float32(DENSE["capture"]) * count
                paid[seat] += np.float32(DENSE["captured"]) * count
        return captured

    def _end(self, rows: Rows, winner: NDArray[np.int64]) -> None:
        """End the games that were won."""
        self.over[rows], self.winner[rows] = True, winner
        self._dice.clear(rows)
        win, loss = (DENSE["win"], DENSE["loss"]) if self._dense else (1.0, -1.0)
        self.rewards[rows] += np.float32(loss)
        self.rewards[rows, winner] += np.float32(win - loss)

    def _write_mask(self, rows: Rows) -> None:
        mask = ludo_turns.legal_actions(self._board, self._dice, self.to_move, rows)
        over = self.over.take(rows)
        if over.any():
            mask[over] = True
        if len(rows) == self.num_games:
            self.action_mask[:] = mask
        else:
            self.action_mask[rows] = mask
