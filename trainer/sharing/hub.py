"""Files of repositories `owner/name` of the Hugging Face Hub, or of folders in its place.

Where the environment variable TRAINER_HUB names a folder, as on a disk that a group shares, FOLDER/owner/name takes the
place of a repository, and nothing goes over the network.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from types import ModuleType

from trainer.config.fields import ConfigError
from trainer.config.run_config import first_line

PLACE = "TRAINER_HUB"
NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def fetch(name: str, file: str) -> Path:
    """The local copy of a file.

    Args:
        name: `owner/name` or `owner/name@revision`.
        file: of the repository.

    Raises:
        ConfigError: it could not be fetched.
    """
    repository, _, revision = name.partition("@")
    _check(repository)
    if place := os.environ.get(PLACE):
        path = Path(place) / repository / file
        if not path.is_file():
            raise ConfigError(f"hub:{name} could not be fetched: there is no {path} ({PLACE} names that folder)")
        return path
    hub = _hub()
    try:
        return Path(hub.hf_hub_download(repository, file, revision=revision or None))
    except (OSError, ValueError) as error:  # all errors of the hub and its connection are one of them
        raise ConfigError(
            f"hub:{name} could not be fetched ({first_line(error)}): check the name, and the connection"
        ) from error


def push(folder: Path, name: str, message: str, private: bool = False) -> str:
    """Put all files of a folder into a repository, which is made if it is not there; other files in it stay.

    Args:
        folder: with the files.
        name: `owner/name`.
        message: of the commit.
        private: whether a new repository is private.

    Returns:
        Where it is: a URL, or the path of the folder in the hub's place.

    Raises:
        ConfigError: it could not be written.
    """
    _check(name)
    if place := os.environ.get(PLACE):
        target = Path(place) / name
        try:
            shutil.copytree(folder, target, dirs_exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"{target} cannot be written ({first_line(error)}): set {PLACE} to another folder"
            ) from error
        return str(target)
    hub = _hub()
    try:
        hub.create_repo(name, private=private, exist_ok=True)
        hub.upload_folder(repo_id=name, folder_path=folder, commit_message=message)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{name} could not be written ({first_line(error)}): check the name and the connection, and sign in by "
            "`hf auth login`"
        ) from error
    return f"https://huggingface.co/{name}"


def _check(name: str) -> None:
    if not NAME.fullmatch(name) or ".." in name:
        raise ConfigError(f"{name} is no name in the hub: write owner/name")


def _hub() -> ModuleType:
    try:
        import huggingface_hub
    except ImportError as error:
        raise ConfigError("the hub needs the package huggingface_hub: pip install huggingface_hub") from error
    return huggingface_hub
