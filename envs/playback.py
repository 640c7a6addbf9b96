"""Record the decisions of other seats while a game runs, and play them back as episodes when it is over.

Where the agent plays against its newest policy, it learns from all seats of that policy. The record of such a seat is
shown as another episode of the sub-environment, between its game and the next one. Its actions are given, so nothing is
chosen, and no game advances. So a stream is still a sequence of episodes, and what reads it needs no change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trainer.envs.actions import Action

Seen = dict[str, NDArray[Any]]
Rows = NDArray[np.int64]
# Of one seat. "seen": observations at each decision and at the end; "action": of each decision; "reward": between each
# decision and the next one, for the first also what came before it; "cut": whether the game was truncated for the seat.
Record = dict[str, Any]


class Playback:
    """Records of games.

    Args:
        num_games: N.
        num_players: P, seats of a game.
        action: the actions of the game.

    Attributes:
        given: [N, *action.shape] of `action.dtype`, the recorded action for the observation that is shown;
            `action.none` where nothing is played back, or at the end of a record.
        showing: bool [N], whether a record is played back.
        over: bool [N], whether the end of a record is shown.
        cut: bool [N], whether that end is a truncation.
    """

    def __init__(self, num_games: int, num_players: int, action: Action) -> None:
        self._action, self._nothing = action, action.none(1)[0]
        self.given = action.none(num_games)
        self.showing, self.over, self.cut = (np.zeros(num_games, bool) for _ in range(3))
        self._at = np.zeros(num_games, np.int64)  # index of the decision that is shown
        self._recorded = np.zeros((num_games, num_players), bool)  # seats with a record
        self._due = np.zeros((num_games, num_players), np.float32)  # rewards since the seat's last decision
        self._open: dict[tuple[int, int], Record] = {}  # by (game, seat)
        self._closed: list[list[Record]] = [[] for _ in range(num_games)]  # of each game; the first one is shown

    def reset(self) -> None:
        """Drop all records."""
        self.given[:] = self._nothing
        self.showing[:] = self.over[:] = self.cut[:] = self._recorded[:] = False
        self._due[:] = 0
        self._open.clear()
        self._closed = [[] for _ in self._closed]

    def decided(self, rows: Rows, seats: Rows, seen: Seen, actions: NDArray[Any]) -> None:
        """Record decisions.

        Args:
            rows: the games, int64 [M].
            seats: that decided, int64 [M].
            seen: their observations, arrays [M, ...].
            actions: that they took, [M, *action.shape].
        """
        for i, key in enumerate(zip(rows.tolist(), seats.tolist(), strict=True)):
            record = self._open.get(key)
            if record is None:
                names: dict[str, list[Any]] = {name: [] for name in seen}
                record = self._open[key] = {"seen": names, "action": [], "reward": [], "cut": False}
            else:
                record["reward"].append(self._due[key])
                self._due[key] = 0
            for name, array in seen.items():
                record["seen"][name].append(array[i].copy())
            record["action"].append(actions[i])
        self._recorded[rows, seats] = True

    def paid(self, rows: Rows, rewards: NDArray[np.float32]) -> None:
        """Record rewards, float32 [M, P], of all seats of the games `rows`, int64 [M]."""
        self._due[rows] += rewards

    def ended(
        self, rows: Rows, observe: Callable[[Rows, Rows], Seen], truncated: NDArray[np.bool_] | None = None
    ) -> None:
        """Close the records of games that are over.

        Args:
            rows: the games, int64 [M].
            observe: `observe(rows, seats)` returns the final observations of seats.
            truncated: of all games and seats, bool [N, P]; None: all games have terminated.
        """
        for seat in np.flatnonzero(self._recorded[rows].any(0)).tolist():  # `observe` takes one seat of each game
            games = rows[self._recorded[rows, seat]]
            seen = observe(games, np.full(len(games), seat))
            for i, row in enumerate(games.tolist()):
                record = self._open.pop((row, seat))
                record["reward"].append(self._due[row, seat])
                record["cut"] = truncated is not None and bool(truncated[row, seat])
                for name, array in seen.items():
                    record["seen"][name].append(array[i].copy())
                if record["cut"] and "action_mask" in seen:  # bootstrapped from, but without a decision: see `masks`
                    record["seen"]["action_mask"][-1] = record["seen"]["action_mask"][-2]
                self._closed[row].append(record)
        self._recorded[rows], self._due[rows] = False, 0

    def begin(self, rows: Rows) -> NDArray[np.bool_]:
        """Begin to show the next record of each of the games `rows`, int64 [M]; returns which have one, bool [M]."""
        for row in rows[self.showing[rows]].tolist():
            self._closed[row].pop(0)
        self.showing[rows] = [bool(self._closed[row]) for row in rows.tolist()]
        self.over[rows], self.cut[rows], self._at[rows], self.given[rows] = False, False, 0, self._nothing
        for row in rows[self.showing[rows]].tolist():
            self.given[row] = self._closed[row][0]["action"][0]
        return self.showing[rows]

    def advance(self, rows: Rows, reward: NDArray[np.float32]) -> None:
        """Go on to the next decision, or to the end, in the games `rows`, int64 [M].

        Args:
            rows: games that are played back.
            reward: float32 [N]; takes the recorded rewards.
        """
        for row in rows.tolist():
            record, at = self._closed[row][0], int(self._at[row])
            reward[row] = record["reward"][at]
            over = self.over[row] = at + 1 == len(record["action"])
            self.cut[row] = over and record["cut"]
            self.given[row] = self._nothing if over else record["action"][at + 1]
        self._at[rows] += 1

    def show(self, observation: Seen) -> None:
        """Write the observations that are played back into an observation, arrays [N, ...]."""
        for row in np.flatnonzero(self.showing).tolist():
            seen, at = self._closed[row][0]["seen"], self._at[row]
            for name, array in observation.items():
                array[row] = seen[name][at]

    def state(self) -> dict[str, Any]:
        """The records, as tensors and plain values."""
        arrays = ("given", "showing", "over", "cut", "_at", "_recorded", "_due")
        return {
            **{name: torch.from_numpy(getattr(self, name).copy()) for name in arrays},
            "open": [[row, seat, _packed(record)] for (row, seat), record in self._open.items()],
            "closed": [[_packed(record) for record in records] for records in self._closed],
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the `state` of another one."""
        for name, value in state.items():
            if isinstance(value, torch.Tensor):
                getattr(self, name)[:] = value.numpy()
        self._open = {(row, seat): _unpacked(record) for row, seat, record in state["open"]}
        self._closed = [[_unpacked(record) for record in records] for records in state["closed"]]


def _packed(record: Record) -> dict[str, Any]:
    seen = {name: torch.from_numpy(np.stack(arrays)) for name, arrays in record["seen"].items()}
    return {
        "seen": seen, "action": torch.from_numpy(np.array(record["action"])),
        "reward": torch.tensor(np.array(record["reward"], np.float32)), "cut": record["cut"],
    }  # fmt: skip


def _unpacked(kept: dict[str, Any]) -> Record:
    seen = {name: list(tensor.numpy()) for name, tensor in kept["seen"].items()}
    return {**kept, "seen": seen, "action": list(kept["action"].numpy()), "reward": list(kept["reward"].numpy())}
