"""The line between a node and the gateway: a TCP connection on which both sides have proved that they know the key.

The proof is that of `multiprocessing.connection` (HMAC). Messages are pickled, so it comes before the first of them.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge
from pickle import UnpicklingError
from typing import Any

from trainer.cluster.exchange import receive

HANDSHAKE_S = 1.0  # in which a caller must have proved itself
STUCK_S = 5.0  # after which a message of which no byte moves is given up
QUEUE = 1_024  # most callers that wait


def listen(host: str) -> socket.socket:
    """A socket for calls to this machine's address `host`, at a free port; `accept` does not wait for a caller."""
    listener = socket.create_server((host, 0), backlog=QUEUE)
    listener.setblocking(False)
    return listener


def accept(listener: socket.socket, key: bytes) -> tuple[Any, Connection] | None:
    """Take a call; returns the caller's first message and the line to it.

    Returns:
        None if nobody has called, or who has is a stranger or does not speak within `HANDSHAKE_S`.
    """
    try:
        called, _ = listener.accept()
    except BlockingIOError:
        return None
    called.setblocking(True)
    _set_up(called)
    _limit(called, HANDSHAKE_S)
    line = Connection(called.detach())
    try:
        deliver_challenge(line, key)
        answer_challenge(line, key)
        first, _ = receive(line)
    except (AuthenticationError, EOFError, OSError, ValueError, AssertionError, UnpicklingError):
        line.close()
        return None
    with socket.socket(fileno=line.fileno()) as known:
        _limit(known, STUCK_S)
        known.detach()
    return first, line


def call(address: tuple[str, int], key: bytes) -> Connection:
    """Call the gateway.

    Raises:
        AuthenticationError: it has another key.
        OSError, EOFError: it is not there.
    """
    line = Client(address, authkey=key)
    with socket.socket(fileno=line.fileno()) as known:
        _set_up(known)
        known.detach()
    return line


def close(line: Connection) -> None:
    """Close a line, which may be closed already."""
    with suppress(OSError):
        line.close()


def _set_up(one: socket.socket) -> None:
    """Send at once, as a message has several parts, and notice a machine that is gone."""
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 2), (socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, 4)):
        one.setsockopt(socket.IPPROTO_TCP, option, value)


def _limit(one: socket.socket, seconds: float) -> None:
    """Let reads and writes raise once no byte has moved for so long; the kernel takes a `struct timeval`."""
    whole = int(seconds)
    value = whole.to_bytes(8, "little") + int((seconds - whole) * 1e6).to_bytes(8, "little")
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        one.setsockopt(socket.SOL_SOCKET, option, value)
