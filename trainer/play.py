"""Watch a finished run play: ``python -m trainer.play RUN`` writes a video, ``--window`` opens a window."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import imageio.v3 as imageio
import numpy as np
import torch

import envs
from trainer.acting import FrameStacks, greedy_policy
from trainer.checkpoint import CheckpointError
from trainer.config import ConfigError
from trainer.finished import add_arguments, open_run
from trainer.processes.evaluator import Policy

VIDEO_FORMATS = (".gif", ".mp4")


def main(arguments: Sequence[str] | None = None) -> int:
    """Play and print where the video is; 2 for what cannot be read or shown."""
    parser = argparse.ArgumentParser(prog="python -m trainer.play", description=__doc__)
    add_arguments(parser)
    parser.add_argument("--episodes", type=int, default=1)
    parser.add_argument("--max-steps", type=int, default=2_000, help="of all episodes together")
    parser.add_argument("--fps", type=int, default=30)
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--out", type=Path, help="file ending in .mp4 or .gif (default: RUN/play.mp4)")
    shown.add_argument("--window", action="store_true", help="show it in a window instead")
    options = parser.parse_args(arguments)
    out = options.out or options.run / "play.mp4"
    if out.suffix not in VIDEO_FORMATS:
        parser.error(f"--out {out} must end in {' or '.join(VIDEO_FORMATS)}")
    try:
        config, _, policy = open_run(options.run, options.policy)
        vector = envs.make(config.env, 1, render_mode="human" if options.window else "rgb_array")
        returns, pictures = play(policy, vector, options.episodes, options.max_steps, options.seed)
        vector.close()
    except (ConfigError, CheckpointError, envs.EnvError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"returns of {len(returns)} finished episodes: {', '.join(f'{r:g}' for r in returns) or 'none'}")
    if not options.window:
        write_video(out, pictures, options.fps)
        print(out)
    return 0


def play(policy: Policy, vector, episodes: int, max_steps: int, seed: int) -> tuple[list[float], list[np.ndarray]]:
    """Greedy episodes of a vector of one environment: finished returns, and pictures [height, width, 3] uint8."""
    observation = vector.reset(seed)
    stacks = FrameStacks(vector.spec, 1)
    stacks.push(observation, np.ones(1, bool))
    fresh, total = np.zeros(1, bool), 0.0
    returns: list[float] = []
    pictures = [vector.render()]
    act = greedy_policy(policy.network, stacks.seen(observation), observation.get("action_mask"))
    with torch.inference_mode():
        while len(returns) < episodes and len(pictures) < max_steps:
            action, _ = act(stacks.seen(observation), observation.get("action_mask"))
            observation, _, terminated, truncated = vector.step(action)
            stacks.push(observation, fresh)
            fresh = terminated | truncated
            total += float(vector.raw_reward[0])
            pictures.append(vector.render())
            if fresh[0]:
                returns.append(total)
                total = 0.0
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
