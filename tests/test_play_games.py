"""Games of a finished run against a human, functions and snapshots, each move shown."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import imageio.v3 as imageio
import pytest

from trainer.commands import play

EVERY_CELL = "".join(f"{cell}\n" for cell in range(9)) * 9


def test_a_human_plays_in_the_terminal(
    game_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "mine.gif"
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"x\n9\n\n4\n4\n{EVERY_CELL}"))
    words = [str(game_run), "--opponent", "human", "--seat", "0", "--seed", "3", "--out", str(out)]
    assert play.main(words) == 0
    done = capsys.readouterr()
    assert done.err == ""
    lines = done.out.splitlines()
    assert lines[0] == "game 1 of tictactoe: you have seat 0; seat 0 begins"
    assert lines[1:4] == ["0 1 2", "3 4 5", "6 7 8"]
    for typed in ("x", "9", "nothing"):
        assert f"> {typed} is not legal here: type one of 0, 1, 2, 3, 4, 5, 6, 7, 8" in done.out
    assert "3 X 5" in lines and "> 4 is not legal here: type one of " in done.out
    assert len(re.findall(r"^best \(seat 1\) plays \d$", done.out, re.MULTILINE)) in (2, 3, 4)
    (moves,) = re.findall(r"^game 1: (?:best won|you won|drawn), (\d) moves$", done.out, re.MULTILINE)
    assert len(imageio.imread(out)) == int(moves) + 1


def test_the_end_of_the_input_ends_the_game(
    game_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("4\n"))
    assert play.main([str(game_run), "--opponent", "human", "--seat", "0"]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "the game is ended",
        "best won 0, drew 0 and lost 0 of 0 finished games against you",
    ]
    assert not (game_run / "play.mp4").exists()


@pytest.mark.parametrize("opponent", ["random", "scripted", "snapshot", "policy", None])
def test_every_move_of_both_sides_is_a_picture(
    opponent: str | None, game_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = {
        "snapshot": str(sorted((game_run / "pool").glob("snapshot_*.pt"))[0]),
        "policy": str(game_run / "best" / "policy.safetensors"),
    }
    out = tmp_path / "game.gif"
    arguments = [] if opponent is None else ["--opponent", named.get(opponent, opponent)]
    assert play.main([str(game_run), *arguments, "--episodes", "2", "--out", str(out)]) == 0
    text = capsys.readouterr().out
    moves = [int(number) for number in re.findall(r"^game \d: .*, (\d) moves$", text, re.MULTILINE)]
    pictures = imageio.imread(out)
    assert len(moves) == 2 and pictures.shape == (sum(moves) + 2, 96, 96, 3)
    won, drew, lost = map(int, re.findall(r"best won (\d), drew (\d) and lost (\d) of 2", text)[0])
    assert won + drew + lost == 2 and not (opponent == "scripted" and won)
    assert text.splitlines()[-1] == str(out)


def test_who_is_not_there_is_refused(game_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.pt").write_bytes(b"torn")
    for arguments, sentence in (
        (["--opponent", "nobody"], "--opponent nobody is neither human, random, scripted, an import path"),
        (["--seat", "2"], "--seat 2 is not there: tictactoe has seats 0 to 1"),
        (["--opponent", str(tmp_path / "x.pt")], "is torn"),
        (["--opponent", str(next((game_run / "checkpoints").glob("frames_*.pt")))], "holds no policy"),
    ):
        assert play.main([str(game_run), *arguments]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: ") and sentence in line
