"""Gradients of many local agents on one shared agent: nothing lost, nothing torn, and alone the same as sequential."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.resuming import differences, go_on, newest, rows_of, stop_at
from trainer.algorithms import build
from trainer.config.algorithms import DQNConfig
from trainer.config.fields import ConfigError
from trainer.config.sections import Config, LearnerConfig
from trainer.envs import DiscreteAction, EnvSpec, Leaf
from trainer.learning.update import Updater
from trainer.shared_gradient.shared import APPLIED, OVERLAPPED, SharedAgent
from trainer.training.processes import use_fork_server
from trainer.training.system import System
from trainer.training.train import train

FAMILY: dict[str, dict[str, Any]] = {
    "dqn": {},
    "everything": {"noisy": True, "prioritized": True, "n_step": 3, "target_tau": 0.01},
    "iqn": {"name": "iqn"},
}
SLOWLY = {"kwargs": {"step_seconds": 0.001}}  # so that a signal comes in time, and all agents get a share
ALONE = {"name": "shared_gradient", "num_agents": 1, "frames_per_round": 32}
FORKS = multiprocessing.get_context("forkserver")


def flat(config: Config, agent: str = "") -> dict[str, Any]:
    folder = Path(str(config.run_dir))
    return newest(folder / "agents" / agent if agent else folder)


@pytest.fixture(scope="module")
def reference_runs(
    make_config: Callable[..., Config], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], dict[str, Any]]:
    """What a sequential run of one of `FAMILY` ends with; each is made once."""
    known: dict[str, dict[str, Any]] = {}

    def of(name: str) -> dict[str, Any]:
        if name not in known:
            config = make_config(
                tmp_path_factory.mktemp(name) / "run", schedule={"name": "sequential", "frames_per_round": 32},
                **of_cartpole(name),
            )  # fmt: skip
            assert train(config, [])["status"] == "finished"
            known[name] = flat(config)
        return known[name]

    return of


def of_cartpole(name: str) -> dict[str, Any]:
    return {
        "algorithm": {"hidden_sizes": [16], **FAMILY[name]}, "budget_frames": 2_400,
        "collector": {"num_workers": 1}, "env": {"id": "CartPole-v1", "backend": "gymnasium"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "applier"),
    [
        ("everything", "local"),
        ("everything", "device"),
        *(pytest.param(name, "local", marks=pytest.mark.slow) for name in ("dqn", "iqn")),
    ],
)
def test_one_local_agent_learns_bit_for_bit_what_sequential_learns(
    name: str, applier: str, small_config: Callable[..., Config], reference_runs: Callable[[str], dict[str, Any]]
) -> None:
    alone = small_config("alone", schedule={**ALONE, "applier": applier}, **of_cartpole(name))
    assert train(alone, [])["status"] == "finished"
    mine, its, shared = flat(alone, "local_0"), reference_runs(name), flat(alone)["shared"]
    assert its["limiter"]["updates"] == mine["limiter"]["updates"] == shared["version"] >= 500
    assert differences(its["learner"]["loss"], mine["learner"]["loss"]) == []  # the target network too
    assert differences(its["sampler"], mine["sampler"]) == []
    moments = its["learner"]["optimizer"]["state"].values()
    for place, key in ((1, "exp_avg"), (2, "exp_avg_sq")):
        sizes = [m[key].numel() for m in moments]
        for part, m in zip(shared["state"][place].split(sizes), moments, strict=True):
            assert torch.equal(part, m[key].flatten())
    assert shared["steps"] == 1.0 * shared["version"]


def test_it_goes_on_bit_for_bit_too(small_config: Callable[..., Config]) -> None:
    sections = {
        "algorithm": {"hidden_sizes": [16], **FAMILY["everything"]}, "budget_frames": 1_600, "schedule": ALONE,
        "logger": {"every_seconds": 0.01},
    }  # fmt: skip
    whole, cut = small_config("whole", **sections), small_config("cut", env=SLOWLY, **sections)
    train(whole, [])
    stop_at(Path(str(cut.run_dir)), 700)
    stopped = train(cut, [])
    assert stopped["status"] == "stopped" and stopped["frames"] < 1_600
    assert go_on(cut)["status"] == "finished"
    for part in ("learner", "sampler", "limiter", "frames"):
        assert differences(flat(whole, "local_0")[part], flat(cut, "local_0")[part]) == []
    assert differences(flat(whole)["shared"], flat(cut)["shared"]) == []


@pytest.mark.parametrize("application", ["locked", pytest.param("hogwild", marks=pytest.mark.slow)])
def test_every_update_is_a_step_of_the_shared_optimiser(application: str, small_config: Callable[..., Config]) -> None:
    config = small_config(
        schedule={"name": "shared_gradient", "num_agents": 3, "application": application}, budget_frames=6_000,
        env=SLOWLY,  # else the first one has it all before the others are there
    )  # fmt: skip
    summary = train(config, [])
    assert summary["status"] == "finished" and 6_000 <= summary["frames"] < 6_000 + 3 * 128
    row = [row for row in rows_of(Path(str(config.run_dir))) if "optimizer_steps" in row][-1]
    updates = [row[f"local_{p}/updates"] for p in range(3)]
    frames = [row[f"local_{p}/frames"] for p in range(3)]
    assert (
        updates == [max(0, frames_of_agent - 200) // 4 for frames_of_agent in frames]
        and sum(frames) == summary["frames"]
    )
    assert summary["updates"] == sum(updates)
    learned = [p for p in range(3) if updates[p]]  # on a busy machine one may come too late to learn
    assert len(learned) >= 2
    assert all(row[f"local_{p}/staleness_updates"] > 0 for p in learned)  # others came between
    if application == "locked":
        assert row["optimizer_steps"] == sum(updates)
    else:
        counts = flat(config)["shared"]["counts"].numpy()
        assert counts[:, APPLIED].sum() == sum(updates) >= row["optimizer_steps"]
        assert "overlapped_updates" in row


def test_a_round_that_is_given_its_updates_makes_no_more(
    small_config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even when the budget is used up and the main process is late to see it."""
    finished = System.finished

    def late(system: System) -> bool:
        done = finished(system)
        time.sleep(1.0 if done else 0.0)
        return done

    monkeypatch.setattr(System, "finished", late)
    sections = {"budget_frames": 640, "collector": {"num_workers": 1}}
    rounds = {"frames_per_round": 32, "updates_per_round": 2, "frames_per_update": 1.0}
    alone = small_config("alone", schedule={**ALONE, **rounds}, **sections)
    reference = small_config("reference", schedule={"name": "sequential", **rounds}, **sections)
    assert train(alone, [])["updates"] == train(reference, [])["updates"] > 0
    assert flat(alone, "local_0")["limiter"]["updates"] == flat(reference)["limiter"]["updates"]


def make_learner() -> Updater:
    """The same in every process: one that is handed to another process would share its weights with it."""
    spec = EnvSpec("Made", (Leaf("observation", (4,), "float32", "vector"),), DiscreteAction(2))
    torch.manual_seed(0)
    config = LearnerConfig(batch_size=8, learning_rate=0.01)
    algorithm = build(DQNConfig(hidden_sizes=[8]), config, spec)
    return Updater(algorithm, config, torch.device("cpu"))


def gradients_of(learner: Updater, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(p.shape, generator=generator) for p in learner.trained]


def apply_many(number: int, shared: SharedAgent, count: int, out: Path, pause_s: float = 0.0) -> None:
    """Body of a process: updates with gradients of known seeds, and which version each of them made."""
    learner = make_learner()
    shared.join(number, learner)
    made = []
    for i in range(count):
        shared.apply(number, learner, gradients_of(learner, 1_000 * number + i))
        made.append(int(shared.counts[number, -1]))  # the version that it took with it
        time.sleep(pause_s)
    out.write_text(json.dumps(made))


def test_four_agents_gradients_in_their_order_give_the_same_weights_in_one_process(tmp_path: Path) -> None:
    learner = make_learner()
    shared = SharedAgent(learner, 4, tmp_path / "lock", "locked")
    use_fork_server()
    outs = [tmp_path / str(number) for number in range(4)]
    processes = [FORKS.Process(target=apply_many, args=(number, shared, 200, outs[number])) for number in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert shared.version == shared.counts[:, APPLIED].sum() == 800
    order = {}
    for number, out in enumerate(outs):
        order |= {version: 1_000 * number + i for i, version in enumerate(json.loads(out.read_text()))}
    assert sorted(order) == list(range(1, 801))
    for version in range(1, 801):
        learner.optimize(learner.parts[0], gradients_of(learner, order[version]))
        learner.conclude()
    found = [torch.empty_like(p) for p in learner.trained]
    shared.pull(None, found)
    assert all(torch.equal(mine, its) for mine, its in zip(learner.trained, found, strict=True))


def test_what_is_kept_while_a_local_agent_goes_on_is_of_one_version(tmp_path: Path) -> None:
    """Adam's steps are counted within the slot, and the version beside it."""
    learner = make_learner()
    shared = SharedAgent(learner, 1, tmp_path / "lock", "locked")
    out = tmp_path / "out"
    use_fork_server()
    process = FORKS.Process(target=apply_many, args=(0, shared, 5_000, out, 1e-4))
    process.start()
    while not shared.version:
        time.sleep(0.01)
    kept = set()
    while not out.exists():
        state = shared.state_dict()
        kept.add((state["steps"], state["version"]))
    process.join()
    assert len(kept) > 2 and all(steps == version for steps, version in kept)


class Deadly(list):
    """Gradients whose reader is killed as it reads them, which is inside of the lock."""

    def __iter__(self):
        os.kill(os.getpid(), signal.SIGKILL)
        return super().__iter__()


def die_inside(shared: SharedAgent) -> None:
    learner = make_learner()
    shared.join(1, learner)
    shared.apply(1, learner, Deadly(gradients_of(learner, 5)))


def test_death_inside_the_lock_leaves_the_weights_before_it_whole(tmp_path: Path) -> None:
    learner = make_learner()
    shared = SharedAgent(learner, 2, tmp_path / "lock", "locked")
    shared.join(0, learner)
    shared.apply(0, learner, gradients_of(learner, 1))
    before = shared.state_dict()
    use_fork_server()
    process = FORKS.Process(target=die_inside, args=(shared,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert shared.holder[0] == 2  # it had the lock
    after = shared.state_dict()
    assert torch.equal(before["state"], after["state"]) and before["version"] == after["version"] == 1
    shared.apply(0, learner, gradients_of(learner, 2))  # nobody waits for the dead
    assert (shared.recovered[0], shared.holder[0], shared.version) == (1, 0, 2)


def test_hogwild_counts_what_overlapped(tmp_path: Path) -> None:
    learner = make_learner()
    shared = SharedAgent(learner, 2, tmp_path / "lock", "hogwild")
    shared.join(0, learner)
    shared.apply(0, learner, gradients_of(learner, 1))
    assert shared.counts[0, OVERLAPPED] == 0
    shared.counts[1, 1] += 1  # the other one has begun and not ended
    shared.apply(0, learner, gradients_of(learner, 2))
    assert shared.counts[0, OVERLAPPED] == 1


@pytest.mark.parametrize("applier", ["local", pytest.param("device", marks=pytest.mark.slow)])
def test_killed_local_agents_are_named_and_come_again(applier: str, small_config: Callable[..., Config]) -> None:
    """Four kills at any moment; what the shared optimiser has counted is what the agents go on from."""
    config = small_config(
        schedule={"name": "shared_gradient", "num_agents": 2, "applier": applier}, budget_frames=1_000_000,
        env={"kwargs": {"step_seconds": 0.001}}, faults={"max_failures": 20},
    )  # fmt: skip
    folder, rng, killed = Path(str(config.run_dir)), np.random.default_rng(0), set()

    def local_agents() -> list[int]:
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                words, maps = (path / "cmdline").read_bytes(), (path / "maps").read_text()
            except OSError:
                continue
            # A local agent has its replay, in the folder that the run made for itself in scratch.
            if b"forkserver" in words and re.search(rf"{folder}/scratch/\S+\.memmap", maps):
                found.append(int(path.name))
        return found

    def strike() -> None:
        while max((row["frames"] for row in rows_of(folder)), default=0) < 400:
            time.sleep(0.01)
        for _ in range(4):
            time.sleep(rng.uniform(0.1, 0.8))
            for pid in rng.permutation(local_agents())[:1]:
                killed.add(int(pid))
                os.kill(int(pid), signal.SIGKILL)
        frames = max(row["frames"] for row in rows_of(folder))
        while max(row["frames"] for row in rows_of(folder)) < frames + 3_000:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=strike, daemon=True).start()
    summary = train(config, [])
    assert summary["stop_signal"] == signal.SIGTERM and killed
    log = (folder / "log.txt").read_text()
    for pid in killed:
        assert re.search(
            rf"the agent local_[01] \(pid {pid}\) died: it was ended by signal SIGKILL; it is restarted", log
        )
    row = [row for row in rows_of(folder) if "optimizer_steps" in row][-1]
    counted = flat(config)["shared"]
    assert counted["version"] == int(counted["counts"][:, APPLIED].sum()) >= row["optimizer_steps"]
    assert row["optimizer_steps"] > 3_000 / 4
    assert summary["learner_restarts"] == len(killed)


def test_what_it_cannot_do_is_refused(small_config: Callable[..., Config]) -> None:
    several = small_config(
        env={"id": "CountingAgents", "backend": "counting_agents"}, schedule={"name": "shared_gradient"}
    )
    with pytest.raises(ConfigError, match="schedule=shared_gradient trains one agent, and CountingAgents has 2"):
        train(several, [])
    for key, value in (("overrides", {"agent": {}}), ("frozen", ["agent"]), ("start_from", {"agent": "policy.pt"})):
        named = small_config(key, schedule={"name": "shared_gradient"}, agents={key: value})
        with pytest.raises(ConfigError, match=f"agents.{key} does nothing with schedule=shared_gradient"):
            train(named, [])
