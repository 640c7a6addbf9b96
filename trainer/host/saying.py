"""Say something on the terminal: a closed pipe (`| head`), a lost terminal or a full disk ends no run."""

from __future__ import annotations

import os
import sys
from typing import TextIO


def say(text: str, stream: TextIO | None = None) -> None:
    """Print a line at once; if its stream does not take it, that line and all later ones go nowhere.

    Args:
        text: the line.
        stream: None: stdout.
    """
    stream = sys.stdout if stream is None else stream
    try:
        print(text, file=stream, flush=True)
    except OSError:
        silence(stream)
    except ValueError:  # it was closed by an environment
        return


def silence(stream: TextIO) -> None:
    """Send what is still buffered, and all that is printed later, nowhere: it would raise again, even at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
