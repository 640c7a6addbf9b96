"""A run to log, and nothing of the machine's own Weights & Biases settings."""

import os

import pytest

from trainer.telemetry.loggers import RunInfo


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run in an empty folder."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", str(tmp_path / "no_netrc"))
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    return RunInfo(
        run_dir=run_dir,
        env_id="CartPole-v1",
        algorithm="dqn",
        seed=3,
        budget_frames=50_000,
        config={"env": {"id": "CartPole-v1"}, "seed": 3},
        num_workers=2,
        num_envs=32,
        device="cpu",
    )


@pytest.fixture
def notices():
    """A list whose append is the sinks' notify."""
    return []
