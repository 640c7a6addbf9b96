"""The replay while real collector processes write it: a short ring, fast writers, and one that is killed.

The counting environment makes every number of a transition checkable by arithmetic.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from trainer.config.sections import Config
from trainer.envs.counting import decode_image, episode_length, expected_reward, is_truncation, legal_actions
from trainer.learning.feed import flat

GAMMA = 0.9
ACTIONS = 3
RING = 48  # rows: some 50 laps a second
PLAIN: dict[str, Any] = {"num_actions": ACTIONS, "max_length": 9}
RICH: dict[str, Any] = {**PLAIN, "image": True, "image_size": 8, "with_mask": True}


def wrong(batch: dict[Any, Tensor], n_step: int, stack: int, env: dict[str, Any]) -> np.ndarray:
    """Which rows of a batch [count, B, ...] are not one whole transition of their stream, bool [count * B]."""
    rows = {key: tensor.flatten(0, 1).numpy() for key, tensor in batch.items()}
    decode = decode_image if env.get("image") else lambda x: x.astype(np.int64)
    now, later = (decode(rows[key]) for key in ("observation", ("next", "observation")))
    if stack == 1:
        now, later = now[:, None], later[:, None]
    stream, episode, step, _ = now[:, -1].T
    length = episode_length(stream, episode, max_length=env["max_length"])
    count = np.minimum(n_step, length - step)  # rewards in the return
    ends, cut = step + count == length, is_truncation(stream, episode)
    right = (stream == rows["stream"]) & (step < length)
    back = np.arange(stack - 1, -1, -1)
    for frames, newest in ((now, step), (later, step + count)):  # every frame of a stack: same stream, same episode
        right &= (frames[..., 0] == stream[:, None]).all(1) & (frames[..., 1] == episode[:, None]).all(1)
        right &= (frames[..., 2] == np.maximum(newest[:, None] - back, 0)).all(1)
    if stack >= n_step:  # the observation after the action shows it
        right &= later[np.arange(len(later)), -count, 3] == rows["action"]
    k = np.arange(n_step)
    rewards = expected_reward(stream[:, None], episode[:, None], step[:, None] + 1 + k)
    returns = (rewards.astype(float) * GAMMA**k * (k < count[:, None])).sum(1)
    right &= np.abs(rows["next", "reward"][:, 0] - returns) < 1e-4
    right &= (rows["next", "terminated"][:, 0] == (ends & ~cut)) & (rows["next", "truncated"][:, 0] == (ends & cut))
    if n_step > 1:
        right &= rows["steps_to_next_obs"][:, 0] == count
    if env.get("with_mask"):
        legal = legal_actions(stream, episode, step, ACTIONS)
        right &= (rows["action_mask"] == legal).all(1) & legal[np.arange(len(legal)), rows["action"]]
        right &= (rows["next", "action_mask"] == legal_actions(stream, episode, step + count, ACTIONS)).all(1)
    return ~right


def checked(replay: Any, rows: int, n_step: int, stack: int, env: dict[str, Any]) -> set[int]:
    """Draw `rows` rows and check all of them, while the writers write; the streams that they came from."""
    streams: set[int] = set()
    for _ in range(0, rows, 4 * 128):
        batch = {key: tensor.view(4, 128, *tensor.shape[1:]) for key, tensor in flat(replay.sample(4 * 128)).items()}
        # Late for many rows, as the writers are some 50 laps a second fast.
        replay.reprioritize(batch["stream"][0], batch["time"][0], torch.rand(128))
        replay.take_priorities()
        faulty = wrong(batch, n_step, stack, env)
        assert not faulty.any(), f"{faulty.sum()} of {len(faulty)} rows"
        streams.update(batch["stream"].flatten().tolist())
    return streams


@pytest.mark.parametrize(
    ("env", "n_step", "stack", "prioritized"),
    [(PLAIN, 1, 1, False), (RICH, 3, 4, False), (RICH, 3, 4, True)],
    ids=["plain", "rich", "prioritized"],
)
def test_no_sampled_row_is_torn_mixed_or_wrong_and_a_killed_writer_stops_nobody(
    env: dict[str, Any],
    n_step: int,
    stack: int,
    prioritized: bool,
    small_config: Callable[..., Config],
    started: Callable[[Config], Any],
):
    workers, envs_per_worker = 2, 8
    config = small_config(
        budget_frames=10**9,
        env={"kwargs": env, "frame_stack": stack},
        algorithm={"n_step": n_step, "gamma": GAMMA, "prioritized": prioritized},
        collector={"num_workers": workers, "envs_per_worker": envs_per_worker},
        replay={"capacity_frames": workers * envs_per_worker * RING},
        learner={"batch_size": 128},
    )
    system = started(config)
    (agent,) = system.learners.local
    board, replay = agent.board, agent.replay
    system.publish()
    board.frame_limit[0] = 10**9

    def sample(rows: int) -> set[int]:
        return checked(replay, rows, n_step, stack, env)

    while board.cursor.min() < RING:
        system.check()
    before = board.cursor.copy()
    sample(60_000)
    while (board.cursor - before <= 5 * RING).any():  # until every stream was overwritten several times meanwhile
        sample(2_048)
        system.check()
    assert replay.redrawn > 0  # and rows were overwritten between draw and read

    for _ in range(5):  # new weights come by themselves, with no message to a running worker
        system.publish()
    while (board.version != agent.plan.weights.version).any():
        system.check()
    assert board.version.tolist() == [6, 6]

    victim, pid = 1, int(system.board.pid[1])
    its = slice(victim * envs_per_worker, (victim + 1) * envs_per_worker)
    os.kill(pid, signal.SIGKILL)
    system.collectors.processes[victim].join(30)
    stopped, others = board.cursor[its].copy(), board.cursor[: its.start].copy()
    streams = sample(60_000)
    assert np.ptp(stopped) <= 1  # it died between two vector steps, or while it published one
    assert (board.cursor[its] == stopped).all() and (board.cursor[: its.start] - others > RING).all()
    assert streams == set(range(workers * envs_per_worker))  # its rows are still drawn, and those of the others
