"""Watching several agents of a finished run: every step is a picture, every agent has its returns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import imageio.v3 as imageio
import numpy as np
import pytest

from trainer import envs
from trainer.api import sources
from trainer.commands import play
from trainer.config.sections import Config
from trainer.envs.worlds import treasurehunt
from trainer.roles.greedy import evaluate
from trainer.training.train import train


def test_a_world_of_several_agents_is_played_into_a_gif(
    small_config: Callable[..., Config], capsys: pytest.CaptureFixture[str]
) -> None:
    kwargs = {"num_agents": 3, "height": 9, "width": 11, "max_turns": 20}
    config = small_config(
        env={"id": "treasurehunt", "backend": "grid", "kwargs": kwargs}, schedule={"name": "sequential"}
    )
    train(config, ["test"])
    run_dir = Path(str(config.run_dir))
    capsys.readouterr()
    out = run_dir / "two.gif"
    assert play.main([str(run_dir), "--episodes", "2", "--seed", "5", "--out", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    saved = sources.of_run(run_dir, "best")
    kept, players = saved.config, saved.players()
    played = evaluate(players, envs.make_world(kept.env, 1), 2, seed=5)
    assert lines[:3] == [
        f"returns of agent_{agent} of 2 finished episodes: {', '.join(f'{value:g}' for value in own.returns)}"
        for agent, own in enumerate(played)
    ]
    pictures = imageio.imread(out)
    assert pictures.shape == (41, 9 * 16, 11 * 16, 3)  # 20 turns, a reset, 20 turns
    assert (pictures[0][0, 0] == treasurehunt.COLOURS[treasurehunt.WALL]).all()
    assert len(np.unique(pictures.reshape(len(pictures), -1), axis=0)) > 20  # it moves
    assert play.main([str(run_dir), "--window"]) == 2
    assert "a grid world has no window" in capsys.readouterr().err
