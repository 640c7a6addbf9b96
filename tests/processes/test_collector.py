"""Our rollout loop: the transitions of TorchRL's own collector, exploration within the mask, and where it stops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torchrl.collectors import Collector

from trainer import envs
from trainer.algorithms import make_policy
from trainer.config.sections import Config
from trainer.envs.counting import legal_actions
from trainer.envs.torchrl import VectorEnvironment
from trainer.host.seeds import SEEDS_PER_RUN
from trainer.memory.boards import STOP, AgentBoard, ControlBoard
from trainer.memory.weights import WeightsBoard, flatten_parameters
from trainer.replay.streams import worker_rows
from trainer.roles.agents import plan_agents
from trainer.roles.rollout import CollectorPlan, Rollout, pause
from trainer.roles.shared_memory import SharedMemoryLink

Streams = list[dict[str, np.ndarray]]  # of each sub-environment: columns [transitions, ...] in time order

ENVIRONMENTS: dict[str, tuple[dict[str, Any], int]] = {  # its section, and vector steps that see ends of all kinds
    # sync: in CartPole's own vector the sub-environments draw their resets from one generator, in the order of ends.
    "cartpole": ({"id": "CartPole-v1", "backend": "gymnasium", "vectorization": "sync"}, 150),
    "taxi with masks": ({"id": "Taxi-v4", "backend": "gymnasium", "max_episode_steps": 20}, 70),
    "acrobot, cut": ({"id": "Acrobot-v1", "backend": "gymnasium", "max_episode_steps": 30}, 100),
    "counting with masks": ({"kwargs": {"num_actions": 5, "with_mask": True, "max_length": 8}}, 60),
}


def rollout_of(config: Config, folder: Path) -> tuple[Rollout, dict[str, np.ndarray], AgentBoard]:
    """The first worker of a run, in this process, with the policy that torch's seed 7 draws; and its rows."""
    config = replace(config, collector=replace(config.collector, num_workers=1))
    (plan,) = plan_agents(config, envs.describe_world(config.env), folder, folder)
    rows = worker_rows(plan.storage, plan.streams, 0)
    torch.manual_seed(7)
    policy = make_policy(config, plan.spec)
    world = envs.make_world(config.env, plan.streams.envs_per_worker)
    link = SharedMemoryLink(ControlBoard(1), [plan], 0)
    rollout = Rollout(CollectorPlan(config, (plan,), 0), link, world, [policy])
    return rollout, rows, plan.board


def by_our_loop(config: Config, steps: int, folder: Path) -> Streams:
    rollout, rows, board = rollout_of(config, folder)
    for _ in range(steps):
        rollout.step([0])
    assert board.cursor.tolist() == [steps] * rollout.world.num_envs
    shown = [leaf.name for leaf in rollout.world.specs[0].leaves] + ["action_mask"] * rollout.world.specs[
        0
    ].action.has_mask
    found = []
    for env in range(rollout.world.num_envs):
        start = np.flatnonzero(~rows["final"][: steps - 1, env])  # the last row's successor is not stored yet
        columns = {name: rows[name][start, env] for name in ("action", "reward", "terminated", "truncated", *shown)}
        found.append(columns | {f"next {name}": rows[name][start + 1, env] for name in shown})
    assert board.frames[0] == sum((~rows["final"][:steps]).ravel())
    rollout.world.close()
    return found


def by_torchrl(config: Config, steps: int) -> Streams:
    n = config.collector.envs_per_worker
    environment = VectorEnvironment(envs.make(config.env, n, autoreset=False))
    environment.set_seed(config.seed * SEEDS_PER_RUN)
    torch.manual_seed(7)
    policy = make_policy(config, envs.describe(config.env))
    collector = Collector(
        environment, policy, frames_per_batch=n * steps, total_frames=n * steps, auto_register_policy_transforms=False
    )
    (batch,) = list(collector)
    collector.shutdown()
    names = [name for name in environment.observation_spec.keys()]
    found = []
    for env in range(n):
        columns = {name: batch[name][env].numpy() for name in ("action", *names)}
        columns |= {name: batch["next", name][env, :, 0].numpy() for name in ("reward", "terminated", "truncated")}
        found.append(columns | {f"next {name}": batch["next", name][env].numpy() for name in names})
    return found


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_same_transitions_as_the_stock_collector(
    name: str, small_config: Callable[..., Config], tmp_path: Path
) -> None:
    section, steps = ENVIRONMENTS[name]
    greedy = {"num_workers": 1, "envs_per_worker": 3, "epsilon_start": 0.0, "epsilon_end": 0.0}
    config = small_config(seed=2, env=section, collector=greedy)
    ours, stock = by_our_loop(config, steps, tmp_path), by_torchrl(config, steps)
    ends = np.zeros(2, np.int64)
    for mine, theirs in zip(ours, stock, strict=True):
        count = len(mine["action"])  # ours spends a row on each end, so it has fewer transitions
        assert steps // 2 < count < steps
        assert mine.keys() == theirs.keys()
        for column, values in mine.items():
            assert values.dtype == theirs[column].dtype
            np.testing.assert_array_equal(values, theirs[column][:count], err_msg=column)
        ends += mine["terminated"].sum(), mine["truncated"].sum()
        assert ("next action_mask" in mine) == ("masks" in name)
    assert ends.sum() >= 3
    if name == "counting with masks":
        assert ends.min() >= 5  # terminations and truncations
    if name in ("taxi with masks", "acrobot, cut"):
        assert ends[1] >= 3


def test_illegal_actions_are_never_taken_and_every_legal_one_is(
    small_config: Callable[..., Config], tmp_path: Path
) -> None:
    """The counting environment refuses an illegal action, so that stepping at all shows it; the rows show it again."""
    config = small_config(
        env={"kwargs": {"num_actions": 6, "with_mask": True, "max_length": 8}},
        collector={"num_workers": 1, "envs_per_worker": 4, "epsilon_start": 1.0, "epsilon_end": 1.0},
    )
    rollout, rows, board = rollout_of(config, tmp_path)
    for _ in range(900):
        rollout.step([0])
    starts = ~rows["final"][:900]
    stream, episode, step, _ = rows["observation"][:900][starts].astype(np.int64).T
    legal, action = legal_actions(stream, episode, step, 6), rows["action"][:900][starts]
    assert legal[np.arange(len(action)), action].all()
    # Uniform over the legal ones: each is taken as often as the sum of 1 / (number of legal actions) says.
    expected = (legal / legal.sum(1, keepdims=True)).sum(0)
    np.testing.assert_allclose(np.bincount(action, minlength=6), expected, rtol=0.15)
    assert board.epsilon[0] == 1.0


@pytest.mark.parametrize(("limit", "most"), [(4, 4), (100, 103)])
def test_frame_limit_pauses_and_stop_ends_the_loop(
    limit: int, most: int, small_config: Callable[..., Config], tmp_path: Path
) -> None:
    """The first vector step of 4 sub-environments is 4 frames: a limit of 4 allows no second one."""
    config = small_config(collector={"num_workers": 1, "envs_per_worker": 4})
    rollout, _, board = rollout_of(config, tmp_path)
    board.frame_limit[0] = limit
    control, wait = rollout.link.board, rollout._wait

    def stop_when_paused() -> None:
        wait()
        control.command[0] = STOP

    rollout._wait = stop_when_paused  # type: ignore[method-assign]
    rollout.run()
    assert limit <= board.frames[0] <= most
    assert control.waited_s[0] > 0
    assert control.heartbeat[0] > 0


@pytest.mark.parametrize(
    ("rounds", "frames", "episodes"), [({"frames_per_round": 40}, 10, 0), ({"episodes_per_round": 7}, 0, 7)]
)
def test_round_has_its_frames_or_its_episodes(
    rounds: dict[str, int], frames: int, episodes: int, small_config: Callable[..., Config], tmp_path: Path
) -> None:
    config = small_config(collector={"num_workers": 1, "envs_per_worker": 4}, schedule={"name": "sync", **rounds})
    rollout, rows, board = rollout_of(config, tmp_path)
    for done in (1, 2):
        before = int(board.episodes_done[0])
        rollout.collect_round()
        assert rollout.link.board.rounds_done[0] == done
        if frames:
            assert board.cursor.tolist() == [frames * done] * 4  # 40 frames of 4 sub-environments
        else:
            # The vector step that ends the last of them may end others too.
            assert episodes <= board.episodes_done[0] - before < episodes + 4


@pytest.mark.parametrize(("waited_s", "pause_s"), [(0.0, 0.0002), (0.0008, 0.0002), (0.004, 0.001), (1.0, 0.002)])
def test_a_worker_looks_less_often_the_longer_it_waits(waited_s: float, pause_s: float) -> None:
    assert pause(waited_s) == pytest.approx(pause_s)


def test_newest_weights_are_acted_by(small_config: Callable[..., Config], tmp_path: Path) -> None:
    greedy = {"num_workers": 1, "envs_per_worker": 4, "epsilon_start": 0.0, "epsilon_end": 0.0}
    config = small_config(env={"kwargs": {"num_actions": 3}}, collector=greedy)
    rollout, rows, board = rollout_of(config, tmp_path)
    scheme = WeightsBoard(rollout.policies.weights[0].numel())
    rollout.agents[0].link._reader = scheme.reader()
    board.frame_limit[0] = 10**9
    network = make_policy(config, rollout.world.specs[0]).module[0].module
    weights = flatten_parameters(network)
    for version, action in enumerate((2, 0, 1), start=1):
        weights.zero_()
        network.head.layers[-1].bias.data[action] = 1.0  # the only value that differs, whatever is observed
        scheme.send(TensorDict.from_module(network))
        rollout.read_weights()
        start = rollout.agents[0].link.time
        for _ in range(5):
            rollout.step([0])
        assert board.version[0] == version
        assert (rows["action"][start : start + 5] == action).all()
