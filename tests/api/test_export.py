"""Exported policies: ONNX and PyTorch's programs choose the policy's actions, for batches of any size."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import trainer
from trainer.config.sections import Config
from trainer.envs import EnvSpec, Leaf
from trainer.envs.actions import DiscreteAction

BATCHES = (1, 2, 5, 33)


def inputs_of(policy: trainer.Policy, count: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Random observations as the environment gives them, [N, ...] each, and a mask."""
    found = []
    for leaf in policy.spec.leaves:
        shape = (count, *(() if leaf.scalar else leaf.seen_shape))
        if leaf.kind == "discrete":
            least = np.array(leaf.start or 0)
            drawn = rng.integers(np.array(leaf.nvec), size=(count, len(leaf.nvec))) + least
            found.append(drawn.reshape(shape).astype(leaf.dtype))
        else:
            high = 256 if leaf.dtype == "uint8" else 2
            found.append(rng.integers(high, size=shape).astype(leaf.dtype) if leaf.dtype != "float32" else
                         rng.random(shape, np.float32))  # fmt: skip
    if policy.spec.action.has_mask:
        mask = rng.random((count, policy.spec.num_actions)) < 0.5
        mask[np.arange(count), rng.integers(policy.spec.num_actions, size=count)] = True
        found.append(mask)
    return found


def expected(policy: trainer.Policy, inputs: list[np.ndarray]) -> np.ndarray:
    """Actions of the network for whole frame stacks."""
    mask = inputs[-1] if policy.spec.action.has_mask else None
    leaves = []
    for leaf, array in zip(policy.spec.leaves, inputs, strict=False):
        counted = array - np.reshape(leaf.start, () if leaf.scalar else leaf.shape) if leaf.start else array
        leaves.append(torch.from_numpy(np.ascontiguousarray(counted.reshape(-1, *leaf.seen_shape), leaf.dtype)))
    values = policy.module(*leaves)
    if mask is not None:
        values = values.masked_fill(~torch.from_numpy(mask), -torch.inf)
    return values.argmax(-1).numpy() + policy.spec.action.start


def check(policy: trainer.Policy, run: Callable[[list[np.ndarray]], np.ndarray]) -> None:
    rng = np.random.default_rng(0)
    for count in BATCHES:
        inputs = inputs_of(policy, count, rng)
        assert np.array_equal(run(inputs), expected(policy, inputs)), count


def runs_as_onnx(path: Path) -> Callable[[list[np.ndarray]], np.ndarray]:
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(path)
    names = [given.name for given in session.get_inputs()]
    return lambda inputs: session.run(["action"], dict(zip(names, inputs, strict=True)))[0]


def runs_as_program(path: Path) -> Callable[[list[np.ndarray]], np.ndarray]:
    module = torch.export.load(path).module()
    return lambda inputs: module(*map(torch.from_numpy, inputs))[0].numpy()


RUNS: dict[str, Callable[[Path], Any]] = {".onnx": runs_as_onnx, ".pt2": runs_as_program}


@pytest.mark.parametrize("suffix", RUNS)
def test_an_exported_policy_chooses_its_actions(suffix: str, cards_run: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    policy = trainer.load_policy(cards_run)
    path = policy.export(tmp_path / f"p{suffix}")
    check(policy, RUNS[suffix](path))
    if suffix == ".onnx":
        import onnx

        model = onnx.load(path)
        said = {entry.key: entry.value for entry in model.metadata_props}
        assert json.loads(said["trainer_policy"])["returns"] == policy.header["returns"]
        assert [given.name for given in model.graph.input] == [
            "observation.hand", "observation.table.0", "observation.table.1", "action_mask",
        ]  # fmt: skip
    with pytest.raises(ValueError, match="must end in .onnx or .pt2"):
        policy.export(tmp_path / "p.tflite")


@pytest.mark.slow
@pytest.mark.parametrize("suffix", RUNS)
@pytest.mark.parametrize(
    "algorithm",
    [
        {"name": "dqn", "dueling": True},
        {"name": "c51"},
        {"name": "qrdqn"},
        {"name": "iqn"},
        {"name": "c51", "noisy": True},
    ],
    ids=lambda one: "-".join(map(str, one.values())),
)
def test_every_network_can_be_exported(
    algorithm: dict[str, Any], suffix: str, make_config: Callable[..., Config], tmp_path: Path
) -> None:
    from trainer.api.sources import Saved
    from trainer.roles.greedy import Players

    pytest.importorskip("onnxscript")
    spec = EnvSpec("image", (Leaf("observation", (36, 40), "uint8", "image", "hw", stack=4),), DiscreteAction(4))
    config = make_config(tmp_path / "run", algorithm={**algorithm, "hidden_sizes": [64]})
    flat = Players([(config, spec)]).flat
    policy = trainer.Policy(Saved(tmp_path, config, [("agent_0", spec)], flat))
    check(policy, RUNS[suffix](policy.export(tmp_path / f"p{suffix}")))


PLAY = """
import json, sys
import gymnasium, numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1])
env, returns = gymnasium.make("CartPole-v1"), []
for episode in range(20):
    observation, _ = env.reset(seed=episode)
    total, ended = 0.0, False
    while not ended:
        (action,) = session.run(["action"], {"observation": observation[None].astype(numpy.float32)})
        observation, reward, terminated, truncated, _ = env.step(int(action[0]))
        total, ended = total + reward, terminated or truncated
    returns.append(total)
print(json.dumps({"mean": float(numpy.mean(returns)), "torch": "torch" in sys.modules}))
"""


@pytest.mark.slow
def test_onnxruntime_alone_reaches_the_runs_return(tmp_path: Path) -> None:
    """In an environment that has onnxruntime, numpy and gymnasium, and nothing of this project."""
    pytest.importorskip("onnxscript")
    run = trainer.train(
        "preset=cartpole", "schedule=sync", "collector.num_workers=1", "budget_frames=40_000",
        "evaluator.stop_at_return=475", "learner.device=cpu", "logger.terminal=none", run_dir=tmp_path / "run",
    )  # fmt: skip
    path = run.policy().export(tmp_path / "p.onnx")
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    packages = ["onnxruntime", "numpy", "gymnasium"]
    subprocess.run([venv / "bin/pip", "install", "--quiet", *packages], check=True)
    (tmp_path / "play.py").write_text(PLAY)
    done = subprocess.run(
        [venv / "bin/python", "play.py", path], cwd=tmp_path, capture_output=True, text=True, env={"PATH": "/usr/bin"}
    )
    assert done.returncode == 0, done.stderr
    found, reached = json.loads(done.stdout), run.summary["eval_return_mean"]
    assert not found["torch"]
    # 20 episodes against 100, each with a deviation below 150 where the mean is near 500.
    assert found["mean"] >= reached - 3 * 150 / 20**0.5, (found, reached)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", RUNS)
@pytest.mark.parametrize("name", ["sac", "td3"])
def test_actors_can_be_exported_and_asked(
    name: str, suffix: str, make_config: Callable[..., Config], tmp_path: Path
) -> None:
    """Actions in a box: one observation, a batch, and draws that differ."""
    from trainer.api.sources import Saved
    from trainer.envs import describe
    from trainer.roles.greedy import Players

    pytest.importorskip("onnxscript")
    config = make_config(
        tmp_path / "run", algorithm={"name": name}, env={"id": "Pendulum-v1", "backend": "gymnasium", "kwargs": {}}
    )
    spec = describe(config.env)
    flat = Players([(config, spec)]).flat
    policy = trainer.Policy(Saved(tmp_path, config, [("agent_0", spec)], flat))
    run = RUNS[suffix](policy.export(tmp_path / f"p{suffix}"))
    for count in BATCHES:
        seen = np.random.default_rng(count).uniform(-1, 1, (count, 3)).astype(np.float32)
        greedy = policy(seen)
        assert greedy.shape == (count, 1) and np.allclose(run([seen]), greedy, atol=1e-5)
        assert np.allclose(policy(seen[0]), greedy[0], atol=1e-6)
        drawn = policy(seen, deterministic=False)
        assert (drawn != greedy).any() and (np.abs(drawn) <= 2).all()
