"""When updates are due, and how far collectors may go: the limiter of each learner decides.

`one` in the arguments below is a learner, or a stack of learners whose updates are made in one call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trainer.learning.limiter import NO_LIMIT
from trainer.roles.learner import Learner, LearnerStack

IDLE_S = 2e-4  # sleep of who finds no update due
SLACK = 8  # due updates of an agent, with which it is updated although others of its stack have none


def open_limit(learner: Learner) -> None:
    """Set the collectors' limits as the limiter allows; a frozen agent does not limit them."""
    board, frames = learner.board, learner.board.total_frames()
    board.frame_limit[0] = learner.config.budget_frames if learner.frozen else learner.limiter.frame_limit()
    board.episode_limit[0] = NO_LIMIT if learner.frozen else learner.limiter.episode_limit(frames)


def settled(learner: Learner) -> bool:
    """Whether all due updates are made."""
    board = learner.board
    return learner.frozen or learner.limiter.settled(board.total_frames(), board.total_episodes())


def work(one: Learner | LearnerStack) -> bool:
    """Make one chunk of due updates; returns whether there was any.

    A stack makes the updates that are due for all of its agents, or for some with many.
    """
    learners = one.learners
    frames = [learner.board.total_frames() for learner in learners]
    due = [_due(learner, so_far) for learner, so_far in zip(learners, frames, strict=True)]
    counts = _chunk(learners, frames, due)
    if not any(counts):
        return False
    for learner, so_far in zip(learners, frames, strict=True):
        learner.anneal(so_far)
    one.learn(counts, _following(learners, due, counts))
    for learner in learners:
        open_limit(learner)
    return True


def round_updates(one: Learner | LearnerStack, frames: int | None = None) -> Iterator[None]:
    """Make all updates that a round owes, or `schedule.updates_per_round`, one chunk for each yield.

    Args:
        one: learner or stack.
        frames: by which rates are annealed; None: each agent's.
    """
    owed = []
    for learner in one.learners:
        so_far, fixed = learner.board.total_frames(), learner.config.schedule.updates_per_round
        learner.anneal(so_far if frames is None else frames)
        due = learner.limiter.due(so_far, learner.board.total_episodes())
        if fixed is not None:
            due = fixed if so_far >= learner.limiter.warmup_frames else 0
        owed.append(0 if learner.frozen else int(due))
    while any(owed):
        counts = [
            min(due, learner.config.learner.prefetch_batches) for learner, due in zip(one.learners, owed, strict=True)
        ]
        one.learn(counts, _following(one.learners, owed, counts))
        owed = [due - done for due, done in zip(owed, counts, strict=True)]
        yield


def _due(learner: Learner, frames: int) -> int:
    """Number of updates that may be made now, at most two chunks: one to work on, one to gather meanwhile."""
    if learner.frozen:
        return 0
    due = learner.limiter.due(frames, learner.board.total_episodes())
    return int(min(due, 2 * learner.config.learner.prefetch_batches))


def _chunk(learners: Sequence[Learner], frames: Sequence[int], due: Sequence[int]) -> list[int]:
    """Number of updates of each agent to be made at once."""
    most = [min(count, one.config.learner.prefetch_batches) for count, one in zip(due, learners, strict=True)]
    common = min((count for count, one in zip(most, learners, strict=True) if not one.frozen), default=0)
    if common:
        return [min(count, common) for count in most]
    # Agents that live longer have more frames; if they hold collection up, all due updates are made.
    held = any(_holds_collection_up(one, so_far) for one, so_far in zip(learners, frames, strict=True))
    return [count if count > (0 if held else SLACK) else 0 for count in most]


def _holds_collection_up(learner: Learner, frames: int) -> bool:
    """Whether collectors wait for this agent after `frames` frames, or have ended."""
    board = learner.board
    return frames >= board.frame_limit[0] or board.total_episodes() >= board.episode_limit[0]


def _following(learners: Sequence[Learner], due: Sequence[int], counts: Sequence[int]) -> list[int]:
    """Number of updates of each agent that the chunk after this one has, as far as it is known."""
    return [
        min(owed - count, learner.config.learner.prefetch_batches)
        for learner, owed, count in zip(learners, due, counts, strict=True)
    ]
