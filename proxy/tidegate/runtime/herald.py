"""Tell whoever started the gate how it is: systemd by sd_notify(3), `up --detach` by a byte in a pipe."""

import logging
import os
import socket
from collections.abc import MutableMapping

__all__ = ["tell_ready", "tell_stopping"]

_log = logging.getLogger(__name__)


def tell_ready(environ: MutableMapping[str, str] = os.environ) -> None:
    """Say that the gate serves."""
    _notify(environ, "READY=1")
    if descriptor := environ.pop("TIDEGATE_READY_FD", None):
        os.write(int(descriptor), b"1")
        os.close(int(descriptor))


def tell_stopping(environ: MutableMapping[str, str] = os.environ) -> None:
    """Say that the gate ends."""
    _notify(environ, "STOPPING=1")


def _notify(environ: MutableMapping[str, str], state: str) -> None:
    address = environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        try:
            sock.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)
        except OSError as fault:
            _log.warning("cannot tell the service manager: %s", fault.strerror)
