"""Ports of the loopback that nothing listens on."""

from __future__ import annotations

import socket


def free_port() -> int:
    """Return one; another process may take it before it is used."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
