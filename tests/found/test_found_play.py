"""What `render` may give: each kind ends in a right video or in one sentence, never in a file that is not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import imageio.v3 as imageio
import numpy as np
import pytest
import yaml

from trainer.commands import play
from trainer.training.train import train

SHOWN = {  # kind -> height, width and a pixel of the first picture, and how many pictures the five steps give
    "float": (60, 80, (128, 128, 128), 5),
    "lists": (4, 6, (0, 128, 255), 5),
    "frames": (8, 8, (0, 0, 0), 10),
    "grey": (10, 10, (255, 255, 255), 5),  # 9 x 9, with the border that H.264 wants
    "alpha": (6, 6, (200, 200, 200), 5),
    "growing": (110, 82, (0, 0, 0), 5),  # the largest one's, of 110 x 81
    "text": (480, 480, (236, 230, 218), 5),
}
REFUSED = {
    "none": "its render gave nothing (None) after each of 5 steps, so there is no video",
    "raise": "failed in render, in step 1 of its episode, step 1 of all: ZeroDivisionError: division by zero",
    "exit": "failed in render, in step 1 of its episode, step 1 of all: SystemExit: no display; where there is no",
    "object": "its render gave something without numbers, which is no picture",
    "nan": "its render gave a picture with numbers that are not finite",
    "empty": "its render gave an array of shape (0, 5, 3), which is no picture",
}


@pytest.fixture(scope="module")
def pictures_run(tmp_path_factory: pytest.TempPathFactory, make_config: Any) -> Path:
    """The folder of a run of `hurting_worlds.Picture`."""
    run_dir = tmp_path_factory.mktemp("play") / "run"
    env = {"id": "Hurting/Picture-v0", "backend": "gymnasium", "import_modules": ["hurting_worlds"]}
    train(make_config(run_dir, budget_frames=400, env=env, schedule={"name": "sequential"}), ["test"])
    return run_dir


@pytest.fixture
def of_kind(pictures_run: Path) -> Any:
    """Makes the run's environment draw pictures of a kind."""

    def change(kind: str) -> Path:
        path = pictures_run / "config.yaml"
        values = yaml.safe_load(path.read_text())
        values["env"]["kwargs"] = {"kind": kind}
        path.write_text(yaml.safe_dump(values))
        return pictures_run

    return change


@pytest.mark.parametrize("kind", SHOWN)
def test_a_picture_of_another_kind_is_shown(kind: str, of_kind: Any, tmp_path: Path) -> None:
    height, width, pixel, count = SHOWN[kind]
    out = tmp_path / "video.mp4"
    assert play.main([str(of_kind(kind)), "--out", str(out)]) == 0
    video = imageio.imread(out)
    assert video.shape == (count, height, width, 3)
    assert np.abs(video[0, 0, min(width, 9) - 9 if kind == "grey" else 0].astype(int) - pixel).max() <= 40
    assert [path.name for path in tmp_path.iterdir()] == ["video.mp4"]


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_picture_is_one_sentence(kind: str, of_kind: Any, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "video.mp4"
    assert play.main([str(of_kind(kind)), "--out", str(out)]) == 2
    told = capsys.readouterr()
    assert REFUSED[kind] in told.err and told.err.count("\n") == 1 and told.err.startswith("error: Hurting/Picture-v0")
    assert str(out) not in told.out and not out.exists()


def test_a_video_that_cannot_be_written_is_one_sentence(of_kind: Any, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file" / "video.mp4", tmp_path / "file" / "video.gif"):
        assert play.main([str(of_kind("float")), "--out", str(out)]) == 2
        told = capsys.readouterr().err
        assert told.count("\n") == 1 and f"error: {out} cannot be written" in told
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("words", [["--episodes", "0"], ["--max-steps", "-1"], ["--fps", "0"]])
def test_numbers_that_play_nothing_are_refused(words: list[str], of_kind: Any, capsys: Any) -> None:
    with pytest.raises(SystemExit) as caught:
        play.main([str(of_kind("float")), *words])
    assert caught.value.code == 2 and f"{words[0]} {words[1]} must be at least 1" in capsys.readouterr().err


def test_an_environment_without_pictures_says_so(of_kind: Any, capsys: Any) -> None:
    path = of_kind("float") / "config.yaml"
    path.write_text(path.read_text().replace("Hurting/Picture-v0", "Hurting/Plain-v0").replace("kind: float", ""))
    values = yaml.safe_load(path.read_text())
    values["env"]["kwargs"] = {}
    path.write_text(yaml.safe_dump(values))
    for words in ([], ["--window"]):
        assert play.main([str(path.parent), *words]) == 2
        told = capsys.readouterr().err
        assert told.count("\n") == 1 and "its constructor takes no render_mode: it has no pictures" in told
    values["env"]["id"] = "Hurting/Picture-v0"
    path.write_text(yaml.safe_dump(values))
