"""Videos of evaluations; rendering that fails ends nothing but the videos."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import imageio.v3 as imageio
import numpy as np
import pytest

from trainer.config.sections import Config
from trainer.roles.evaluator import Evaluation
from trainer.telemetry.video import opened
from trainer.training.evaluators import Videos
from trainer.training.train import train

PICTURE = {"id": "Hurting/Picture-v0", "backend": "gymnasium", "import_modules": ["hurting_worlds"]}
EVALUATOR = {"every_frames": 200, "episodes": 2, "num_envs": 2, "final_episodes": 2}


def events(config: Config) -> str:
    return (Path(str(config.run_dir)) / "log.txt").read_text()


def test_every_second_evaluation_is_filmed(small_config: Callable[..., Config]):
    config = small_config(
        env=PICTURE | {"kwargs": {"kind": "float"}}, schedule={"name": "sequential"},
        evaluator=EVALUATOR | {"video_every": 2},
    )  # fmt: skip
    train(config, ["test"])
    folder = Path(str(config.run_dir)) / "videos"
    names = sorted(path.name for path in folder.iterdir())
    evaluated = [int(frames) for frames in re.findall(r"evaluation at (\d+) frames", events(config))]
    assert len(evaluated) >= 5 and names == [f"frames_{frames:012d}.mp4" for frames in evaluated[:5:2]]
    assert imageio.imread(folder / names[0]).shape == (5, 60, 80, 3)  # a picture for each of five steps
    assert f"video of a greedy episode at {evaluated[2]} frames: {folder / names[1]}" in events(config)
    assert f"videos/{names[0]}" in (folder.parent / "manifest.txt").read_text().split("\n")


@pytest.mark.parametrize("kind", ["raise", "none"])
def test_an_environment_that_cannot_draw_is_trained_without_videos(small_config: Callable[..., Config], kind: str):
    config = small_config(
        env=PICTURE | {"kwargs": {"kind": kind}}, schedule={"name": "sequential"},
        evaluator=EVALUATOR | {"video_every": 1},
    )  # fmt: skip
    assert train(config, ["test"])["status"] == "finished"
    told = {"raise": "ZeroDivisionError: division by zero", "none": "its render gave nothing (None) after each of 5"}
    (line,) = [line for line in events(config).split("\n") if "there will be no videos" in line]
    assert "warning" in line and told[kind] in line
    assert not any((Path(str(config.run_dir)) / "videos").iterdir())


def test_an_evaluator_that_dies_as_it_draws_evaluates_again_without(small_config: Callable[..., Config]):
    config = small_config(
        env=PICTURE | {"kwargs": {"kind": "kill"}}, schedule={"name": "sync"}, faults={"max_failures": 1},
        evaluator=EVALUATOR | {"video_every": 1},
    )  # fmt: skip
    summary = train(config, ["test"])
    assert summary["status"] == "finished"
    assert "there will be no videos (the evaluator died or hung as it drew)" in events(config)
    assert events(config).count("greedy episodes") >= 3  # evaluations went on


def test_games_are_filmed_against_the_opponent_of_evaluations(small_config: Callable[..., Config]):
    config = small_config(
        env={"id": "tictactoe", "backend": "game"}, schedule={"name": "sequential"}, budget_frames=600,
        evaluator=EVALUATOR | {"video_every": 1, "league_games": 0},
    )  # fmt: skip
    train(config, ["test"])
    videos = sorted((Path(str(config.run_dir)) / "videos").iterdir())
    assert videos and 3 <= len(imageio.imread(videos[0])) <= 5  # decisions of one seat until the game is over


def test_a_video_appears_whole_or_not_at_all(tmp_path: Path):
    path = tmp_path / "videos" / "one.mp4"
    with pytest.raises(ZeroDivisionError), opened(path, 30) as add:
        add(np.zeros((16, 16, 3), np.uint8))
        raise ZeroDivisionError
    with opened(path, 30):
        pass
    assert list(path.parent.iterdir()) == []
    with opened(path, 30) as add:
        for shade in (0, 100, 200):
            add(np.full((15, 9, 3), shade, np.uint8))
        add(np.full((40, 40, 3), 50, np.uint8))  # gets the size of the first
    video = imageio.imread(path)
    assert video.shape == (4, 16, 10, 3)
    assert np.abs(video[:, 4, 4, 0].astype(int) - [0, 100, 200, 50]).max() < 12
    assert [file.name for file in path.parent.iterdir()] == ["one.mp4"]


def test_which_evaluations_are_filmed():
    def filmed(every: int, failed_at: int = -1) -> list[int]:
        videos, found = Videos(every), []
        for number in range(7):
            if videos.due():
                found.append(number)
                videos.look(evaluation(no_video="no display" if number == failed_at else ""))
        return found

    def evaluation(**more: Any) -> Evaluation:
        return Evaluation(0, [1.0], [1], 0.1, 0.0, [1.0], [1.0], **more)

    assert filmed(0) == [] and filmed(1) == list(range(7)) and filmed(3) == [0, 3, 6]
    assert filmed(2, failed_at=2) == [0, 2]
