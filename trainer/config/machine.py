"""What the machine and the job say of themselves in variables and paths, looked at before anything is started."""

from __future__ import annotations

import os
import tempfile

from trainer.config.fields import ConfigError, shown

SOCKET_PATH = 107  # bytes of a socket's path, by Linux
SOCKET_NAME = len("/trainer-12345678/listener-12345678")  # of those below the temporary folder: trainer.host.leftovers
MOST_CORES = 100_000


def available_cores() -> int:
    """Cores that this process may use: SLURM's share of the node, else the affinity mask; never the whole machine.

    Raises:
        ConfigError: SLURM_CPUS_PER_TASK is no positive whole number.
    """
    return cores_of_job("SLURM_CPUS_PER_TASK") or len(os.sched_getaffinity(0))


def cores_of_job(*variables: str) -> int | None:
    """What the first of these variables that is set says; None where none is.

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
        ConfigError: a variable of SLURM's is no number, or sockets find no room in the temporary folder's name.
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
