"""Turn what an environment's `render` returns into pictures, and pictures into a video."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import imageio.v3 as imageio
import imageio_ffmpeg
import numpy as np

from trainer.config.fields import ConfigError
from trainer.envs import EnvError
from trainer.envs.games import text_picture
from trainer.run_folder import manifest

FORMATS = (".gif", ".mp4")
CHANNELS = (1, 3, 4)  # grey; RGB; RGB and alpha, which is ignored


def pictures_of(rendered: Any, env_id: str) -> list[np.ndarray]:
    """Convert what `render` returned into pictures, uint8 [height, width, 3].

    Floats are taken as 0 .. 1, or as 0 .. 255 if one is above 1; other numbers as 0 .. 255. Text is drawn.

    Args:
        rendered: None (no picture), an array, text, or a list of frames (one picture each).
        env_id: for the error.

    Raises:
        EnvError: it is no picture.
    """
    if rendered is None:
        return []
    if isinstance(rendered, str):
        return [text_picture.picture(rendered)]
    if isinstance(rendered, list | tuple) and all(getattr(frame, "ndim", 0) == 3 for frame in rendered):
        return [picture for frame in rendered for picture in pictures_of(frame, env_id)]
    try:
        array = np.asarray(rendered)
    except ValueError:  # of ragged lists
        array = np.asarray(None)
    if array.ndim == 4:
        return [picture for frame in array for picture in pictures_of(frame, env_id)]
    return [_as_bytes(_with_channels(array, env_id), env_id)]


def write_video(path: Path, pictures: Sequence[np.ndarray], fps: int) -> None:
    """Write pictures, uint8 [height, width, 3], as GIF or MP4 (H.264); smaller ones get a black border.

    Args:
        path: of the video, in one of `FORMATS`.
        pictures: at least one.
        fps: pictures per second.

    Raises:
        ConfigError: the file could not be written.
    """
    height, width = (max(picture.shape[axis] for picture in pictures) for axis in (0, 1))
    if path.suffix == ".mp4":  # H.264 needs even sizes
        height, width = height + height % 2, width + width % 2
    alike = [_bordered(picture, height, width) for picture in pictures]
    new = path.with_name(f".{path.stem}_{os.getpid()}{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new.touch(exist_ok=False)  # fails with a clearer reason than the encoder's
        if path.suffix == ".gif":
            imageio.imwrite(new, alike, duration=1000 / fps, loop=0)
        else:
            imageio.imwrite(new, alike, fps=fps, codec="libx264", macro_block_size=2)
        if not new.stat().st_size:
            raise OSError("the encoder wrote nothing")
        new.replace(path)
    except (OSError, ValueError, RuntimeError) as error:
        with suppress(OSError):
            new.unlink()
        raise ConfigError(f"{path} cannot be written ({error}): name another file with --out, or make room") from error


@contextmanager
def opened(path: Path, fps: int) -> Iterator[Callable[[np.ndarray], None]]:
    """Write an MP4 (H.264) picture by picture; it appears at the end, and not at all without pictures or at an error.

    Yields a function that takes the next picture, uint8 [height, width, 3]; all get the size of the first one.

    Args:
        path: of the video.
        fps: pictures per second.

    Raises:
        OSError: it could not be written.
    """
    aside = manifest.aside_of(path)
    path.parent.mkdir(exist_ok=True)
    manifest.add(path, aside)
    encoder: Any = None
    size = (0, 0)

    def add(picture: np.ndarray) -> None:
        nonlocal encoder, size
        if encoder is None:
            size = (picture.shape[0] + picture.shape[0] % 2, picture.shape[1] + picture.shape[1] % 2)  # H.264: even
            encoder = imageio_ffmpeg.write_frames(
                str(aside), size[::-1], fps=fps, codec="libx264", macro_block_size=2, output_params=["-f", "mp4"]
            )
            encoder.send(None)
        encoder.send(np.ascontiguousarray(_bordered(picture[: size[0], : size[1]], *size)))

    try:
        try:
            yield add
        finally:
            if encoder is not None:
                encoder.close()
        if encoder is not None:
            os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def _with_channels(array: np.ndarray, env_id: str) -> np.ndarray:
    if array.dtype.kind not in "biuf" or array.ndim not in (2, 3) or not array.size:
        raise _no_picture(array, env_id)
    if array.ndim == 2:
        array = array[:, :, None]
    if array.shape[2] not in CHANNELS and array.shape[0] in CHANNELS:
        array = array.transpose(1, 2, 0)
    if array.shape[2] not in CHANNELS:
        raise _no_picture(array, env_id)
    return np.repeat(array, 3, 2) if array.shape[2] == 1 else array[:, :, :3]


def _as_bytes(array: np.ndarray, env_id: str) -> np.ndarray:
    if array.dtype == np.uint8:
        return array.copy()  # the next step may draw into the same array
    if not np.isfinite(array).all():
        raise EnvError(f"{env_id}: its render gave a picture with numbers that are not finite; correct its render.")
    scale = 255 if array.dtype.kind in "bf" and array.max() <= 1 else 1
    return np.clip(np.rint(array.astype(float) * scale), 0, 255).astype(np.uint8)


def _bordered(picture: np.ndarray, height: int, width: int) -> np.ndarray:
    return np.pad(picture, ((0, height - picture.shape[0]), (0, width - picture.shape[1]), (0, 0)))


def _no_picture(array: np.ndarray, env_id: str) -> EnvError:
    what = f"an array of shape {array.shape}" if array.dtype.kind in "biuf" else "something without numbers"
    return EnvError(
        f"{env_id}: its render gave {what}, which is no picture: with render_mode=rgb_array it must return uint8 "
        "[height, width, 3]."
    )
