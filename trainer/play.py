"""Watch a finished run play: ``python -m trainer.play RUN`` writes a video, ``--window`` opens a window.

In a turn-based game, ``--opponent`` says against whom; with ``--opponent human`` you play in the terminal.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import imageio.v3 as imageio
import numpy as np

import envs
from trainer.config import ConfigError
from trainer.finished import add_arguments, open_run
from trainer.play_games import Table, play_games
from trainer.processes.evaluator import Players, evaluate, world_of
from trainer.reading import ReadError

VIDEO_FORMATS = (".gif", ".mp4")


def main(arguments: Sequence[str] | None = None) -> int:
    """Play and print where the video is; 2 for what cannot be read or shown."""
    parser = argparse.ArgumentParser(prog="python -m trainer.play", description=__doc__)
    add_arguments(parser)
    parser.add_argument("--episodes", type=int, default=1)
    parser.add_argument("--max-steps", type=int, default=2_000, help="of all episodes together")
    parser.add_argument("--fps", type=int, help="pictures a second (default: 30; of a turn-based game 2)")
    who = "human, random, scripted, or a policy.pt or snapshot_*.pt (default: whom the run evaluates against)"
    parser.add_argument("--opponent", metavar="WHO", help=f"in a turn-based game: {who}")
    parser.add_argument("--seat", type=int, help="of the opponent; 0 begins (default: another one in every game)")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--out", type=Path, help="file ending in .mp4 or .gif (default: RUN/play.mp4)")
    shown.add_argument("--window", action="store_true", help="show it in a window instead")
    options = parser.parse_args(arguments)
    out = options.out or options.run / "play.mp4"
    if out.suffix not in VIDEO_FORMATS:
        parser.error(f"--out {out} must end in {' or '.join(VIDEO_FORMATS)}")
    try:
        config, players = open_run(options.run, options.policy)
        world = world_of(config, 1, render_mode="human" if options.window else "rgb_array")
        is_game = hasattr(world, "game")
        returns: dict[str, list[float]] = {}
        if is_game:
            filmed = options.opponent != "human" or options.out is not None
            pictures = play_games(config, players.flat, world, table_of(options, filmed))
        elif options.opponent is not None or options.seat is not None:
            raise ConfigError(f"{config.env.id} is no turn-based game: leave out --opponent and --seat")
        else:
            returns, pictures = play(players, world, options.episodes, options.max_steps, options.seed)
        world.close()
    except (ConfigError, ReadError, envs.EnvError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for agent, own in returns.items():
        who = f" of {agent}" if len(returns) > 1 else ""
        print(f"returns{who} of {len(own)} finished episodes: {', '.join(f'{r:g}' for r in own) or 'none'}")
    if not options.window and (pictures or not is_game):
        write_video(out, pictures, options.fps or (2 if is_game else 30))
        print(out)
    return 0


def table_of(options: argparse.Namespace, filmed: bool) -> Table:
    """What is played where it is a turn-based game."""
    return Table(
        policy=options.policy, opponent=options.opponent, seat=options.seat, games=options.episodes,
        max_moves=options.max_steps, seed=options.seed, filmed=filmed,
    )  # fmt: skip


def play(
    players: Players, world: Any, episodes: int, max_steps: int, seed: int
) -> tuple[dict[str, list[float]], list[np.ndarray]]:
    """Greedy episodes of a world of one sub-environment.

    Returns:
        finished returns by agent, and a picture [height, width, 3] uint8 after each step.
    """
    pictures: list[Any] = []

    def watch(_: object) -> bool:
        pictures.append(world.render())
        return len(pictures) < max_steps

    played = evaluate(players, world, episodes, seed, watch=watch)
    returns = {agent: own.returns for agent, own in zip(world.agents, played, strict=True)}
    return returns, [picture for picture in pictures if picture is not None]


def write_video(path: Path, pictures: list[np.ndarray], fps: int) -> None:
    """Write pictures [height, width, 3] uint8 as GIF or MP4 (H.264)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".gif":
        imageio.imwrite(path, pictures, duration=1000 / fps, loop=0)
    else:
        imageio.imwrite(path, pictures, fps=fps, codec="libx264", macro_block_size=2)


if __name__ == "__main__":
    sys.exit(main())
