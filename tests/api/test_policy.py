"""A policy acts on what the environment gives, and its file is all that it needs."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import torch
from tensordict import TensorDict

import trainer
from trainer.api import sources
from trainer.run_folder import checkpoint, policy_file


@pytest.fixture
def policy(cards_run: Path) -> trainer.Policy:
    return trainer.load_policy(cards_run)


def played(policy: trainer.Policy, episodes: int, seed: int) -> list[float]:
    """Returns of greedy episodes in one environment, one after another."""
    env, returns = policy.make_env(), []
    for episode in range(episodes):
        observation, _ = env.reset(seed=None if episode else seed)
        policy.reset()
        total, ended = 0.0, False
        while not ended:
            observation, reward, terminated, truncated, _ = env.step(policy(observation))
            total, ended = total + reward, terminated or truncated
        returns.append(total)
    env.close()
    return returns


def batch_of(observations: list[Any]) -> dict[str, Any]:
    return {
        "hand": np.array([one["hand"] for one in observations]),
        "table": tuple(np.stack(parts) for parts in zip(*[one["table"] for one in observations], strict=True)),
        "action_mask": np.stack([one["action_mask"] for one in observations]),
    }


def observations(policy: trainer.Policy, count: int) -> list[Any]:
    """First observations of `count` episodes."""
    env = policy.make_env()
    return [env.reset(seed=seed)[0] for seed in range(count)]


def test_it_plays_the_episodes_that_an_evaluation_plays(cards_run: Path, policy: trainer.Policy) -> None:
    result = trainer.load(cards_run).evaluate(3, seed=5, num_envs=1)
    assert played(policy, 3, seed=5) == pytest.approx(result["returns"])
    assert result["eval_return_mean"] == pytest.approx(np.mean(result["returns"]))
    assert result["lengths"] == [12, 12, 12]


def test_a_batch_gives_the_actions_of_its_observations(policy: trainer.Policy) -> None:
    seen = observations(policy, 20)
    singly = []
    for one in seen:
        policy.reset()
        singly.append(policy(one))
    policy.reset()
    together = policy(batch_of(seen))
    assert together.tolist() == singly and together.shape == (20,)
    assert set(singly) > {1} or set(singly) <= {1, 2, 3}
    assert all(one["action_mask"][action - 1] for one, action in zip(seen, singly, strict=True))


def test_stacks_of_a_batch_begin_again_where_an_episode_begins(policy: trainer.Policy) -> None:
    first, second, third = (batch_of(observations(policy, 9)[i : i + 3]) for i in (0, 3, 6))
    policy(first)
    policy(second)
    policy.reset([False, True, False])
    mixed = policy._seen(policy._leaves(third)[0], 3)[1]  # of table.0, [3, 3, 4]
    numbers = [part["table"][0] for part in (first, second, third)]
    assert torch.equal(mixed[0], torch.from_numpy(np.stack([part[0] for part in numbers])))
    assert torch.equal(mixed[1], torch.from_numpy(np.stack([numbers[2][1]] * 3)))
    with pytest.raises(ValueError, match="has the last frames of 3 environments, and the batch has 2: call reset"):
        policy(batch_of(observations(policy, 2)))


def test_exploring_actions_are_legal_seeded_and_sometimes_others(policy: trainer.Policy) -> None:
    seen = batch_of(observations(policy, 400))
    drawn = []
    for seed in (1, 1, 2):
        policy.seed(seed)
        policy.reset()
        drawn.append(policy(seen, deterministic=False))
    policy.reset()
    assert (drawn[0] == drawn[1]).all() and (drawn[0] != drawn[2]).any()
    changed = (drawn[0] != policy(seen)).mean()
    assert 0 < changed < 0.1  # collector.epsilon_end is 0.05
    assert seen["action_mask"][np.arange(400), drawn[0] - 1].all()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"hand": 7}, "observation.hand lies outside its space"),
        (
            {"table": (np.zeros(3), np.zeros(2, int))},
            r"table.0 has shape \(3,\), and Cards-v0 gives \(4,\)",
        ),
        ({"table": ()}, "observation.table.0 is missing in the observation"),
        ({"table": (np.zeros((2, 4)), np.zeros(2, int))}, "batches of different sizes"),
        ({"action_mask": None}, r"pass mask=, as info\['action_mask'\]"),
        ({"action_mask": [1, 1]}, "the mask has shape"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(
    change: dict[str, Any], sentence: str, policy: trainer.Policy
) -> None:
    seen = {**observations(policy, 1)[0], **change}
    with pytest.raises(ValueError, match=sentence):
        policy(seen)


def test_its_modules_give_the_same_action(policy: trainer.Policy) -> None:
    seen = batch_of(observations(policy, 6))
    leaves = policy._seen(policy._leaves(seen)[0], 6)
    policy.reset()
    names = [leaf.name for leaf in policy.spec.leaves]
    mask = torch.from_numpy(seen["action_mask"]).bool()
    values = policy.module(*leaves).masked_fill(~mask, -torch.inf)
    acted = policy.tensordict_module(TensorDict(dict(zip(names, leaves, strict=True)), [6]).set("action_mask", mask))
    assert (values.argmax(-1).numpy() + 1 == policy(seen)).all()
    assert torch.equal(acted["action"], values.argmax(-1))


def test_a_file_is_enough_anywhere(cards_run: Path, policy: trainer.Policy, tmp_path: Path) -> None:
    for path in (tmp_path / "a.safetensors", policy.save(tmp_path / "b.safetensors")):
        if not path.exists():
            shutil.copy(cards_run / "best" / "policy.safetensors", path)
        again = trainer.load_policy(path)
        assert again.spec == policy.spec and again.config.algorithm == policy.config.algorithm
        assert played(again, 2, seed=9) == played(policy, 2, seed=9)
    with pytest.raises(ValueError, match="must end in .safetensors"):
        policy.save(tmp_path / "policy.zip")


def test_what_its_file_says(cards_run: Path, policy: trainer.Policy) -> None:
    path = cards_run / "best" / "policy.safetensors"
    with safetensors.safe_open(path, framework="pt") as file:
        header, names = json.loads(file.metadata()["trainer_policy"]), set(file.keys())
        shapes = {name: file.get_slice(name).get_shape() for name in names}
    assert shapes["head.layers.0.weight"] == [16, 4 * 3 + 3 + 2 + 3]
    assert dict(header["agents"][0]["tensors"]) == shapes
    assert header["format"] == 1 and header["versions"]["torch"] == torch.__version__.partition("+")[0] or True
    assert header["command"] == ["trainer run env.id=Cards-v0"]
    assert header["config"]["env"]["frame_stack"] == 3 and header["config"]["algorithm"]["hidden_sizes"] == [16]
    assert header["config"]["run_dir"] is None  # nothing of this machine
    assert header["returns"].keys() == {
        "eval_return_mean", "eval_return_std", "eval_episodes", "final_return_mean", "final_return_std",
        "final_episodes",
    }  # fmt: skip
    summary = json.loads((cards_run / "summary.json").read_text())
    assert header["returns"]["final_return_mean"] == summary["eval_return_mean"]
    assert policy.header == header


def test_the_last_policy_is_another_one(cards_run: Path) -> None:
    last = trainer.load_policy(cards_run, "last")
    assert last.header["frames"] == checkpoint.load(cards_run / "last" / "policy.safetensors")["frames"] >= 800
    assert last.spec == trainer.load_policy(cards_run).spec


def test_policies_of_an_older_version_are_read_with_their_run(cards_run: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(cards_run, tmp_path / "run"))
    best = checkpoint.load(run / "best" / "policy.safetensors")
    kept = {key: best[key] for key in ("weights", "frames", "eval_return_mean")}
    checkpoint.write_aside(kept, run / "best" / "policy.pt")
    (run / "best" / "policy.safetensors").unlink()
    last = checkpoint.load(run / "last" / "policy.safetensors")
    del last["policy"]
    checkpoint.write_aside(
        {**last, **checkpoint.load(run / "checkpoints" / "run.pt")}, run / "checkpoints/last_policy.pt"
    )
    (run / "last" / "policy.safetensors").unlink()
    (run / "checkpoints" / "run.pt").unlink()
    for source in (run, run / "best" / "policy.pt"):
        assert played(trainer.load_policy(source), 2, seed=9) == played(trainer.load_policy(cards_run), 2, seed=9)
    alone = shutil.copy(run / "best" / "policy.pt", tmp_path / "alone.pt")
    with pytest.raises(trainer.ReadError, match="holds weights alone, .* name its run's folder"):
        trainer.load_policy(alone)


def test_no_code_of_a_file_is_run(tmp_path: Path) -> None:
    marker = tmp_path / "ran"

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, (f"touch {marker}",)

    for name, data in (("evil.pt", pickle.dumps(Evil())), ("evil.safetensors", pickle.dumps(Evil()))):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(trainer.ReadError):
            trainer.load_policy(tmp_path / name)
    torch.save({"weights": Evil()}, tmp_path / "evil2.pt")
    with pytest.raises(trainer.ReadError, match="more than tensors and plain values"):
        trainer.load_policy(tmp_path / "evil2.pt")
    assert not marker.exists()


def test_a_newer_format_and_another_file_are_refused(cards_run: Path, tmp_path: Path) -> None:
    data = (cards_run / "best" / "policy.safetensors").read_bytes()
    header, flat = policy_file.parse(tmp_path, data)
    policy_file.write(tmp_path / "newer.safetensors", {**header, "format": 2}, flat)
    with pytest.raises(trainer.ConfigError, match="has format 2, and this trainer knows policy files of format 1"):
        trainer.load_policy(tmp_path / "newer.safetensors")
    from safetensors.torch import save_file

    save_file({"weights": flat}, tmp_path / "other.safetensors")
    with pytest.raises(trainer.ReadError, match="holds no policy of this trainer"):
        trainer.load_policy(tmp_path / "other.safetensors")


@pytest.mark.parametrize(
    ("source", "more", "sentence"),
    [
        ("none", {}, "there is nothing of that name"),
        (".", {}, "is no run's folder"),
        ("RUN", {"which": "first"}, "--policy first is no policy of .*: it has best, last"),
        ("RUN", {"agent": "red"}, "has no agent red: it has agent_0"),
    ],
)
def test_what_is_not_there_is_refused(
    source: str, more: dict[str, str], sentence: str, cards_run: Path, tmp_path: Path
) -> None:
    with pytest.raises(trainer.ConfigError, match=sentence):
        trainer.load_policy(cards_run if source == "RUN" else tmp_path / source, **more)


def test_several_agents_are_told_apart(make_config: Any, tmp_path: Path) -> None:
    from trainer.training.train import train

    config = make_config(
        tmp_path / "run", budget_frames=600, schedule={"name": "sequential"},
        env={"id": "treasurehunt", "backend": "grid", "kwargs": {"num_agents": 2, "max_turns": 20}},
    )  # fmt: skip
    train(config, ["test"])
    run = tmp_path / "run"
    with pytest.raises(trainer.ConfigError, match="has 2 agents: name one, as agent='agent_0'"):
        trainer.load_policy(run)
    one, other = (trainer.load_policy(run, agent=name) for name in ("agent_0", "agent_1"))
    flat = sources.of_run(run, "best").flat
    for part, policy in zip(flat.chunk(2), (one, other), strict=True):
        assert sum(float(p.detach().sum()) for p in policy.module.parameters()) == pytest.approx(
            float(part.sum()), abs=1e-3
        )
    alone = trainer.load_policy(other.save(tmp_path / "one.safetensors"))
    assert alone.agent == "agent_1"
    seen = torch.zeros(3, *alone.spec.leaves[0].shape, dtype=getattr(torch, alone.spec.leaves[0].dtype))
    assert torch.equal(alone.module(seen), other.module(seen))
