"""Watch a finished run play: `python -m trainer.play RUN` writes a video, `--window` opens a window.

In a turn-based game, `--opponent` says against whom; with `--opponent human` you play in the terminal.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import torch

from trainer import envs
from trainer.api import sources
from trainer.api.evaluation import check_world
from trainer.commands.finished import add_arguments, from_here
from trainer.commands.names import program
from trainer.config.fields import ConfigError
from trainer.config.parts import import_from_here
from trainer.reading import ReadError
from trainer.roles.evaluator import world_of
from trainer.roles.filming import FPS, GAME_FPS, play
from trainer.selfplay.play_games import Table, play_games
from trainer.telemetry.video import FORMATS, pictures_of, write_video


def main(arguments: Sequence[str] | None = None) -> int:
    """Play, and print the returns and the path of the video.

    Args:
        arguments: of the command line; None: those of this process.

    Returns:
        The exit code: 0, or 2 if the run could not be read, played or shown; stderr says why.
    """
    parser = argparse.ArgumentParser(prog=program("play"), description=__doc__)
    add_arguments(parser)
    parser.add_argument("--episodes", type=int, default=1)
    parser.add_argument("--max-steps", type=int, default=2_000, help="of all episodes together")
    parser.add_argument("--fps", type=int, help="pictures a second (default: 30; of a turn-based game 2)")
    who = "human, random, scripted, or the file of a policy or a snapshot (default: whom the run evaluates against)"
    parser.add_argument("--opponent", metavar="WHO", help=f"in a turn-based game: {who}")
    parser.add_argument("--seat", type=int, help="of the opponent; 0 begins (default: another one in every game)")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--out", type=from_here, help="file ending in .mp4 or .gif (default: play.mp4 in RUN, or here)")
    shown.add_argument("--window", action="store_true", help="show it in a window instead")
    options = parser.parse_args(arguments)
    if options.opponent is not None and Path(options.opponent).is_file():
        options.opponent = str(from_here(options.opponent))
    here = options.run if isinstance(options.run, Path) and options.run.is_dir() else Path.cwd()
    out = options.out or here / "play.mp4"
    if out.suffix not in FORMATS:
        parser.error(f"--out {out} must end in {' or '.join(FORMATS)}")
    for name in ("episodes", "max_steps", "fps"):
        if (value := getattr(options, name)) is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')} {value} must be at least 1")
    try:
        returns, pictures, is_game = _played(options)
        for agent, values in returns.items():
            who = f" of {agent}" if len(returns) > 1 else ""
            print(f"returns{who} of {len(values)} finished episodes: {', '.join(f'{r:g}' for r in values) or 'none'}")
        if pictures:
            write_video(out, pictures, options.fps or (GAME_FPS if is_game else FPS))
            print(out)
    except (ConfigError, ReadError, envs.EnvError) as error:
        print(f"error: {error}{'; without --window a video is written' if options.window else ''}", file=sys.stderr)
        return 2
    return 0


def _played(options: argparse.Namespace) -> tuple[dict[str, list[float]], list[np.ndarray], bool]:
    """Returns by agent, pictures (none for a window), and whether it is a turn-based game."""
    import_from_here()
    saved = sources.read(options.run, options.policy, options.trust)
    config, players = saved.config, saved.players()
    torch.set_num_threads(1)
    with closing(world_of(config, 1, render_mode="human" if options.window else "rgb_array")) as world:
        check_world(saved, world)
        if hasattr(world, "game"):
            filmed = options.opponent != "human" or options.out is not None
            return {}, play_games(config, players.flat, world, table_of(options, filmed)), True
        if options.opponent is not None or options.seat is not None:
            raise ConfigError(f"{config.env.id} is no turn-based game: leave out --opponent and --seat")
        if options.window:
            return play(players, world, options.episodes, options.max_steps, options.seed)[0], [], False
        returns, shown = play(players, world, options.episodes, options.max_steps, options.seed)
        pictures = [picture for rendered in shown for picture in pictures_of(rendered, config.env.id)]
        if not pictures:
            raise envs.EnvError(
                f"{config.env.id}: its render gave nothing (None) after each of {len(shown)} steps, so there is no "
                "video: with render_mode=rgb_array it must return a picture, uint8 [height, width, 3]."
            )
        return returns, pictures, False


def table_of(options: argparse.Namespace, filmed: bool) -> Table:
    """The options of `play_games`, for a turn-based game."""
    return Table(
        policy=options.policy, opponent=options.opponent, seat=options.seat, games=options.episodes,
        max_moves=options.max_steps, seed=options.seed, filmed=filmed,
    )  # fmt: skip
