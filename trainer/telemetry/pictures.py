"""Writing a picture where the user wants it."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from trainer.run_folder import manifest


def save(picture: Figure, path: Path) -> None:
    """Write a picture, whole or not at all; the end of the file's name says in which format.

    Raises:
        OSError: it cannot be written there; its text is one sentence.
    """
    known = picture.canvas.get_supported_filetypes()
    kind = path.suffix.lstrip(".").lower()
    if kind not in known:
        raise OSError(f"{path} does not say which kind of picture it is to be: end its name in .png, .pdf or .svg")
    try:
        with manifest.written(path) as file:
            picture.savefig(file, format=kind)
    except OSError as error:
        raise OSError(f"{path} cannot be written ({error.strerror or error}): choose another place") from error
