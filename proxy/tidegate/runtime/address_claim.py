"""One gate an address: what the kernel does not see to, since workers share their port by SO_REUSEPORT.

| other holder | how it shows |
|---|---|
| another gate | the abstract unix socket named after the address is taken; its peer credentials tell the pid |
| any other program | a bind without SO_REUSEPORT is refused |

The unix socket lives in the network namespace, as the port does, and ends with its process, however that ends.
"""

import errno
import os
import socket
import time
from collections.abc import Iterable
from typing import Final

from tidegate.config.model import address_text
from tidegate.errors import ConfigError
from tidegate.peer import Peer, peer_of
from tidegate.runtime.listener import listen_hint

__all__ = ["address_holder", "claim_addresses"]

_PATIENCE_SECONDS: Final = 3.0
_STEP_SECONDS: Final = 0.05


def claim_addresses(addresses: Iterable[tuple[str, tuple[str, int]]], *, tell: bool = True) -> list[socket.socket]:
    """Claim addresses for the life of these sockets, before any worker listens there; each with its key.

    They say by whom when they are asked, unless not told to (`tell`): a sandbox that shares the namespace could ask.
    Raises `ConfigError` when one is another gate's, or another program's.
    """
    held: list[socket.socket] = []
    try:
        for key, address in addresses:
            held += _claim(key, address, tell=tell)
            _probe(key, address)
    except BaseException:
        for sock in held:
            sock.close()
        raise
    return held


def address_holder(address: tuple[str, int]) -> Peer | None:
    """Return the supervisor of the gate that has claimed an address, or None."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(1.0)
        try:
            sock.connect(_name(address))
        except OSError:
            return None
        return peer_of(sock)


def _claim(key: str, address: tuple[str, int], *, tell: bool) -> list[socket.socket]:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.bind(_name(address))
        if tell:
            sock.listen(16)
    except OSError as fault:
        sock.close()
        holder = address_holder(address)
        if fault.errno != errno.EADDRINUSE:
            raise ConfigError(f"cannot claim {address_text(address)}: {fault.strerror}", where=key) from fault
        if holder is not None and holder.uid not in (0, os.geteuid()):
            return []  # another user's gate cannot share our port, and no one may keep us from a free one by the name
        who = f"as pid {holder.pid}" if holder is not None else "which is ending or not answering"
        raise ConfigError(
            f"another gate has {address_text(address)} already, {who}",
            where=key,
            hint=f"end it first, or give this one another address: {key}",
        ) from fault
    return [sock]


def _probe(key: str, address: tuple[str, int]) -> None:
    """Bind for a moment without SO_REUSEPORT; workers of a gate that has just been killed may take a moment to end."""
    end = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            _bind(address)
            return
        except OSError as fault:
            if fault.errno != errno.EADDRINUSE or time.monotonic() > end:
                raise ConfigError(
                    f"cannot listen on {address_text(address)}: {fault.strerror}",
                    where=key,
                    hint=listen_hint(fault, key=key),
                ) from fault
        time.sleep(_STEP_SECONDS)


def _bind(address: tuple[str, int]) -> None:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what waits in TIME_WAIT is no holder
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)


def _name(address: tuple[str, int]) -> str:
    return f"\0tidegate/listen/{address_text(address)}"
