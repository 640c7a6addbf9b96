"""Several agents in one world: what is each one's own, and that nothing of one ever reaches another."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp

from trainer import envs
from trainer.config.fields import ConfigError
from trainer.config.overrides import agent_config
from trainer.config.schedules import SCHEDULES
from trainer.config.sections import Config
from trainer.envs.counting import expected_reward
from trainer.envs.counting_agents import AGENT_STREAMS
from trainer.host.seeds import SEEDS_PER_RUN
from trainer.learning.feed import flat
from trainer.roles.agents import AgentPlan, plan_agents, without_scheme
from trainer.roles.collector import CollectorPlan
from trainer.run_folder import checkpoint
from trainer.training.processes import use_fork_server
from trainer.training.saving import save
from trainer.training.system import System
from trainer.training.train import train

COUNTING = {"id": "Counting", "backend": "counting_agents", "kwargs": {"num_agents": 3, "max_length": 9}}


# ------------------------------------------------------------------ the replay of each


@pytest.mark.parametrize("schedule", ["async", "sequential"])
def test_no_replay_ever_holds_another_agents_transition(
    schedule: str, small_config: Callable[..., Config], started: Callable[[Config], System]
) -> None:
    config = small_config(env=COUNTING, schedule={"name": schedule, "frames_per_round": 256}, budget_frames=2_000)
    system = started(config)
    system.publish()
    if schedule == "async":
        for _ in SCHEDULES["async"].turns(system):
            system.check()
    else:
        for _ in range(8):
            system.board.round[0] += 1
            for rollout in system.collectors.rollouts:
                rollout.collect_round()
    for number, agent in enumerate(system.learners.local):
        first = config.seed * SEEDS_PER_RUN + number * AGENT_STREAMS
        rows = {key: value.numpy() for key, value in flat(agent.replay.sample(40 * agent.replay.batch_size)).items()}
        stream, episode, step, _ = rows["observation"].astype(np.int64).T
        following = rows["next", "observation"].astype(np.int64).T
        assert set(stream) == set(range(first, first + 8))  # 2 workers x 4 sub-environments, its own ones
        assert (stream - first == rows["stream"]).all()
        assert (following[0] == stream).all() and (following[1] == episode).all() and (following[2] == step + 1).all()
        assert (following[3] == rows["action"]).all()
        assert (rows["next", "reward"][:, 0] == expected_reward(stream, episode, step + 1)).all()
        cursor = agent.board.cursor
        written = agent.plan.storage._storage["observation"].numpy()[:, 0].astype(np.int64)
        used = agent.plan.streams.index(
            np.repeat(np.arange(8), np.minimum(cursor, agent.plan.streams.ring)),
            np.concatenate([np.arange(min(end, agent.plan.streams.ring)) for end in cursor]),
        )
        assert set(written[used]) == set(range(first, first + 8))  # every row, not only those that were drawn


def test_agents_of_a_stack_whose_frames_differ_never_wait_for_one_another(
    small_config: Callable[..., Config], started: Callable[[Config], System]
) -> None:
    """One has updates due, another has not, and nobody collects before the first has made them."""
    config = small_config(
        env=COUNTING,
        learner={"prefetch_batches": 1},  # fewer than an agent of a stack may be ahead
        schedule={"frames_per_update": 1.0, "tolerance_frames": 8},
        budget_frames=800,
    )
    system, deadline = started(config), time.monotonic() + 120
    system.publish()
    for _ in SCHEDULES["async"].turns(system):
        assert time.monotonic() < deadline, "both sides wait"
    assert all(agent.limiter.updates > 400 for agent in system.learners.local)


@pytest.mark.parametrize(
    ("schedule", "learner"),
    [
        ("sequential", "stacked"),
        ("sync", "sequential"),
        ("async", "stacked"),
        pytest.param("async", "process", marks=pytest.mark.slow),
    ],
)
def test_updates_are_those_that_finished_episodes_owe(
    schedule: str, learner: str, small_config: Callable[..., Config]
) -> None:
    """One for every three episodes of an agent, whatever its frames; another agent has a value of its own."""
    config = small_config(
        env=COUNTING,
        agents={"learner": learner, "overrides": {"agent_1": {"schedule": {"episodes_per_update": 0.5}}}},
        schedule={"name": schedule, "episodes_per_update": 3.0},
        budget_frames=1_800,
    )
    train(config, ["test"])
    for agent, per_update in (("agent_0", 3.0), ("agent_1", 0.5), ("agent_2", 3.0)):
        state = checkpoint.newest(Path(str(config.run_dir)) / "agents" / agent / "checkpoints")
        assert state is not None
        episodes, updates = state["episodes_done"], state["limiter"]["updates"]
        assert 1_800 / 9 < episodes < 1_900  # of one to nine steps
        missing = int(episodes / per_update) - updates
        # Collectors may have been within their last step, of 8 sub-environments, as the run was found to be over.
        assert 0 <= missing <= (8 / per_update + 1 if schedule == "async" else 0)


def final_weights(config: Config, poison: bool, monkeypatch: pytest.MonkeyPatch) -> dict[str, torch.Tensor]:
    """Weights of all agents after a run, in which agent_1's replay and weights are spoilt half way."""
    original = SCHEDULES["sync"]

    def spoiling(system: System) -> Any:
        for turn, _ in enumerate(original.turns(system)):
            if poison and turn == 10:
                victim = system.learners.local[1]
                victim.plan.storage._storage["observation"].fill_(torch.nan)
                for value in victim.updater.trained:
                    value.fill_(torch.nan)
            yield

    with monkeypatch.context() as patch:
        patch.setitem(SCHEDULES, "sync", replace(original, turns=spoiling))
        train(config, ["test"])
    folder = Path(str(config.run_dir))
    flat = checkpoint.load(folder / "last" / "policy.safetensors")["weights"]
    return dict(zip(("agent_0", "agent_1", "agent_2"), flat.chunk(3), strict=True))


@pytest.mark.parametrize("learner", [pytest.param("sequential", marks=pytest.mark.slow), "stacked"])
def test_a_poisoned_agent_changes_no_bit_of_the_others_training(
    learner: str, small_config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    sections = {"env": COUNTING, "agents": {"learner": learner}, "schedule": {"name": "sync"}, "budget_frames": 2_000}
    clean = final_weights(small_config("clean", **sections), False, monkeypatch)
    spoilt = final_weights(small_config("spoilt", **sections), True, monkeypatch)
    assert torch.equal(clean["agent_0"], spoilt["agent_0"]) and torch.equal(clean["agent_2"], spoilt["agent_2"])
    assert torch.isfinite(clean["agent_1"]).all() and torch.isnan(spoilt["agent_1"]).all()
    assert not torch.equal(clean["agent_0"], clean["agent_2"])  # each its own network


# ------------------------------------------------------------------ processes


def until(condition: Callable[[], bool], system: System, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "gave up waiting"
        system.check()
        time.sleep(0.01)


@pytest.mark.parametrize(
    "fault", [pytest.param(signal.SIGKILL, marks=pytest.mark.slow), signal.SIGSTOP], ids=["killed", "hung"]
)
def test_a_learner_process_that_dies_or_hangs_is_named_and_restarted_and_stops_nobody(
    fault: int, small_config: Callable[..., Config], started: Callable[[Config], System]
) -> None:
    config = small_config(
        env=COUNTING,
        agents={"learner": "process", "hang_seconds": 1.0},
        faults={"max_failures": 1},
        schedule={"frames_per_update": 4.0, "tolerance_frames": 2_000},
        budget_frames=10**9,
    )
    system = started(config)
    boards = [plan.board for plan in system.plans]
    until(lambda: all(board.updates[0] > 50 for board in boards), system)
    victim = system.learners.remote[1]
    pid, others = victim.supervised.pid, [board.updates[0] for board in boards]
    save(system, system.total_frames(), whole=True, more={})
    until(lambda: len(checkpoint.numbered(victim.plan.folder)) > 0, system)
    saved = checkpoint.newest(victim.plan.folder)
    assert saved is not None
    os.kill(pid, fault)
    frames = system.total_frames()
    until(lambda: victim.restarts == 1, system)
    until(lambda: system.total_frames() > frames + 1_000, system)
    until(lambda: boards[0].updates[0] > others[0] + 100 and boards[2].updates[0] > others[2] + 100, system)
    until(lambda: boards[1].updates[0] > saved["limiter"]["updates"] + 20, system)
    assert all(board.version.min() > 1 for board in boards)  # what they learn reaches the collectors
    assert victim.supervised.pid != pid and [learner.restarts for learner in system.learners.remote] == [0, 1, 0]
    log = (Path(str(config.run_dir)) / "log.txt").read_text()
    assert f"[learner agent_1 pid {pid}] the learner of agent_1 (pid {pid})" in log
    assert ("SIGKILL" if fault == signal.SIGKILL else "no sign of life") in log


@pytest.mark.parametrize("learner", ["process", "stacked", pytest.param("sequential", marks=pytest.mark.slow)])
def test_a_whole_run_of_each_kind_leaves_each_agents_figures_and_checkpoints(
    learner: str, small_config: Callable[..., Config]
) -> None:
    config = small_config(
        env={"id": "treasurehunt", "backend": "grid", "kwargs": {"num_agents": 3, "height": 9, "width": 9}},
        agents={"learner": learner, "overrides": {"agent_2": {"learner": {"learning_rate": 0.01, "batch_size": 16}}}},
        evaluator={"every_frames": 500},
    )
    summary = train(config, ["test"])
    assert summary["status"] == "finished" and summary["frames"] >= 1_000
    assert set(summary["eval_return_mean_by_agent"]) == {"agent_0", "agent_1", "agent_2"}
    assert summary["eval_return_mean"] == pytest.approx(np.mean(list(summary["eval_return_mean_by_agent"].values())))
    folder = Path(str(config.run_dir))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    last = [row for row in rows if "agent_0/updates" in row][-1]
    for agent in range(3):
        name = f"agent_{agent}"
        state = checkpoint.newest(folder / "agents" / name / "checkpoints")
        assert state is not None and state["limiter"]["updates"] >= (1_000 - 200) // 4 - 64
        assert state["learner"]["learning_rate"] == pytest.approx(0.01 if agent == 2 else 2.5e-4)
        assert last[f"{name}/frames"] >= 1_000
    log = (folder / "log.txt").read_text().splitlines()
    assert all(re.match(r"\S+ \S+ \[(main|evaluator) pid \d+\] ", line) for line in log)
    assert last["updates"] == sum(last[f"agent_{agent}/updates"] for agent in range(3))
    assert not (folder / "scratch").exists() or not any((folder / "scratch").iterdir())


def test_plans_carry_no_network(small_config: Callable[..., Config], tmp_path: Path) -> None:
    """What crosses to a worker or a learner is its size whatever the network's: that is built where it runs."""
    sizes = []
    for hidden in ([8], [512, 512]):
        config = small_config(env=COUNTING, algorithm={"hidden_sizes": hidden})
        folder = tmp_path / str(len(hidden))
        plans = plan_agents(config, envs.describe_world(config.env), folder, folder)
        sizes.append(len(ForkingPickler.dumps(CollectorPlan(config, tuple(map(without_scheme, plans)), 0))))
    assert abs(sizes[0] - sizes[1]) < 100 and sizes[0] < 100_000


# ------------------------------------------------------------------ an agent's own configuration


def test_a_frozen_agent_keeps_its_weights_and_may_start_from_another_runs(small_config: Callable[..., Config]) -> None:
    first = small_config("first", env={"id": "CartPole-v1", "backend": "gymnasium"})
    train(first, ["test"])
    policy = Path(str(first.run_dir)) / "best" / "policy.safetensors"
    base = {"id": "Counting", "backend": "counting_agents", "kwargs": {"num_agents": 2}}
    agents = {"learner": "sequential", "frozen": ["agent_1"], "start_from": {"agent_1": str(policy)}}
    config = small_config("second", env=base, agents=agents)
    train(config, ["test"])
    one, other = checkpoint.load(Path(str(config.run_dir)) / "last" / "policy.safetensors")["weights"].chunk(2)
    assert torch.equal(other, checkpoint.load(policy)["weights"]) and not torch.equal(one, other)


def test_an_agent_that_learns_in_a_process_starts_from_another_runs_policy_too(
    small_config: Callable[..., Config],
) -> None:
    """Without updates its last policy is the one that it was given."""
    agents = {"num_agents": 2, "max_length": 9}
    first = small_config("first", env={**COUNTING, "kwargs": agents}, seed=5, schedule={"name": "sequential"})
    train(first, ["test"])
    given = checkpoint.load(Path(str(first.run_dir)) / "last" / "policy.safetensors")["weights"].chunk(2)[1]
    policy = Path(str(first.run_dir)) / "given.pt"
    checkpoint.write_aside({"weights": given.clone(), "frames": 0}, policy)
    second = small_config(
        "second", env={**COUNTING, "kwargs": agents}, learner={"warmup_frames": 100_000},
        agents={"learner": "process", "start_from": {"agent_1": str(policy)}},
    )  # fmt: skip
    train(second, ["test"])
    one, other = checkpoint.load(Path(str(second.run_dir)) / "last" / "policy.safetensors")["weights"].chunk(2)
    assert torch.equal(other, given) and not torch.equal(one, given)
    kept = checkpoint.newest(Path(str(second.run_dir)) / "agents" / "agent_1" / "checkpoints")
    assert kept is not None and kept["limiter"]["updates"] == 0
    kept_weights = torch.cat([value.flatten() for value in kept["learner"]["loss"].values()])
    assert torch.isin(given, kept_weights).all()  # the learner's process had them, too


@pytest.mark.parametrize("schedule", ["sync", "sequential"])
def test_processes_of_their_own_want_the_asynchronous_schedule(
    schedule: str, small_config: Callable[..., Config]
) -> None:
    config = small_config(env=COUNTING, agents={"learner": "process"}, schedule={"name": schedule})
    with pytest.raises(
        ConfigError, match=f"agents.learner=process .* schedule={schedule} does not: set agents.learner"
    ):
        train(config, ["test"])


def test_own_values_reach_their_agent_only_and_wrong_ones_are_refused(
    small_config: Callable[..., Config], tmp_path: Path
) -> None:
    config = small_config(env=COUNTING)
    own = {"agent_1": {"learner": {"batch_size": 64}, "algorithm": {"name": "qrdqn", "gamma": 0.5}}}
    config = replace(config, agents=replace(config.agents, overrides=own))
    changed, same = agent_config(config, "agent_1"), agent_config(config, "agent_0")
    assert (changed.learner.batch_size, changed.algorithm.name, changed.algorithm.gamma) == (64, "qrdqn", 0.5)
    assert same == config
    for overrides, message in (
        ({"agent_1": {"learner": {"lr": 1e-3}}}, r"the nearest is agents.overrides.agent_1.learner.learning_rate"),
        ({"agent_1": {"learner": {"batch_size": "many"}}}, "learner.batch_size=many does not fit"),
        ({"agent_7": {"learner": {"batch_size": 64}}}, "agents.overrides.agent_7 names no agent of Counting"),
    ):
        wrong = replace(config, agents=replace(config.agents, overrides=overrides))
        with pytest.raises(ConfigError, match=message):
            plan_agents(wrong, envs.describe_world(wrong.env), tmp_path, tmp_path)
    for key, value in (("frozen", ["agent_7"]), ("start_from", {"agent_7": "policy.pt"})):
        wrong = replace(config, agents=replace(config.agents, overrides={}, **{key: value}))
        with pytest.raises(ConfigError, match=f"agents.{key}.agent_7 names no agent of Counting"):
            plan_agents(wrong, envs.describe_world(wrong.env), tmp_path, tmp_path)


@pytest.mark.slow
def test_sixty_agents_start(small_config: Callable[..., Config]) -> None:
    """A process is handed at most 253 files at its start: what agents share must not be one each."""
    config = small_config(
        env={"id": "CountingAgents", "backend": "counting_agents", "kwargs": {"num_agents": 60}},
        algorithm={"hidden_sizes": [4]}, collector={"num_workers": 1, "envs_per_worker": 2}, budget_frames=240,
    )  # fmt: skip
    summary = train(config, ["test"])
    assert summary["status"] == "finished" and len(summary["eval_return_mean_by_agent"]) == 60


def mark(plans: list[AgentPlan]) -> None:
    """Body of a process."""
    for plan in plans:
        plan.board.frames[0] = 1 + plan.number


def test_plans_of_many_agents_reach_a_process(small_config: Callable[..., Config], tmp_path: Path) -> None:
    """What they share is one open file: one each would be too many. battle_v4 of magent2 has 162 agents."""
    env = {"id": "CountingAgents", "backend": "counting_agents", "kwargs": {"num_agents": 130}}
    config = small_config(env=env, algorithm={"hidden_sizes": [4]})
    plans = plan_agents(config, envs.describe_world(config.env), tmp_path, tmp_path / "scratch")
    use_fork_server()
    process = mp.get_context().Process(target=mark, args=(plans,))
    process.start()
    process.join()
    assert [plan.board.frames.tolist() for plan in plans] == [[1 + number, 0] for number in range(130)]
