"""The machine and the SLURM job: cores, and checks that are made before any process starts."""

from __future__ import annotations

import os
import tempfile

from trainer.config.fields import ConfigError, shown

SOCKET_PATH = 107  # bytes of a socket's path, by Linux
SOCKET_NAME = len("/trainer-12345678/listener-12345678")  # path of a socket in the temporary folder
MOST_CORES = 100_000


def available_cores() -> int:
    """Number of cores that this process may use: SLURM's share of the node, else those of the affinity mask.

    Raises:
        ConfigError: SLURM_CPUS_PER_TASK is no positive whole number.
    """
    return cores_of_job("SLURM_CPUS_PER_TASK") or len(os.sched_getaffinity(0))


def cores_of_job(*variables: str) -> int | None:
    """The number in the first of these environment variables that is set; None if none is.

    Raises:
        ConfigError: it is no positive whole number.
    """
    for name in variables:
        text = os.environ.get(name)
        if text is None:
            continue
        if not (text.isascii() and text.isdecimal() and len(text) < 10 and 0 < int(text) <= MOST_CORES):
            raise ConfigError(f"{name}={shown(text)} is no positive whole number: set it right, or unset it")
        return int(text)
    return None


def check_machine() -> None:
    """Refuse a machine on which processes could not be started.

    Raises:
        ConfigError: a variable of SLURM is no number, there is no folder for temporary files, or its path is too long
            for sockets.
    """
    cores_of_job("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE")
    try:
        folder = tempfile.gettempdir()
    except FileNotFoundError as error:
        raise ConfigError(
            f"there is no folder for temporary files ({error.strerror}): set TMPDIR to one that you may write"
        ) from error
    length, most = len(os.fsencode(folder)), SOCKET_PATH - SOCKET_NAME
    if length > most:
        raise ConfigError(
            f"TMPDIR={shown(folder)} is too long: sockets lie in it, so it may have {most} bytes and has {length}; set "
            "another one, as TMPDIR=/tmp"
        )
