"""Write a picture into the file that the user named."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from trainer.run_folder import manifest


def save(picture: Figure, path: Path) -> None:
    """Write a picture, whole or not at all, in the format that the suffix of the file's name says.

    Raises:
        OSError: the suffix or the place is wrong; the text is one sentence.
    """
    known = picture.canvas.get_supported_filetypes()
    kind = path.suffix.lstrip(".").lower()
    if kind not in known:
        raise OSError(f"{path} does not say the kind of picture: end its name in .png, .pdf or .svg")
    try:
        with manifest.written(path) as file:
            picture.savefig(file, format=kind)
    except OSError as error:
        raise OSError(f"{path} cannot be written ({error.strerror or error}): choose another place") from error
