"""The names that a sandbox without a network knows: each of the policy's exact names, at a loopback address of its own.

With `uds` there is no DNS inside. The hosts file says where each name is, `shim` listens there, and the gate learns
the name from what is said (SNI, Host), as it does from anybody. The address says nothing; that each name has its own
keeps two names from sharing a connection by address (RFC 9113 section 9.1.1).
"""

import re
from collections.abc import Iterable
from typing import Final

from tidegate.errors import LaunchError
from tidegate_launcher.net.shim import NETWORK

__all__ = ["MOST_NAMES", "addresses_of", "hosts_text"]

MOST_NAMES: Final = 200
"""Each is two listeners of the shim's, which has the descriptors of one process."""

_OWN: Final = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"
# A-labels, as the policy has them. What is none could add a line to the file.
_NAME: Final = re.compile(r"(?=.{1,253}\Z)(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_-]{1,63}")
_PER_ROW: Final = 254


def addresses_of(names: Iterable[str]) -> dict[str, str]:
    """Return the address of each name, the same for the same set of names. `localhost` has its own already.

    Raises `LaunchError` for what is no exact name, and for more than `MOST_NAMES`.
    """
    exact = sorted(set(names) - {"localhost"})
    for name in exact:
        if _NAME.fullmatch(name) is None:
            raise LaunchError("only an exact name can stand in a hosts file", where=repr(name[:100]))
    if len(exact) > MOST_NAMES:
        hint = "--net veth has no such limit; or let the clients use HTTP_PROXY, with fewer names"
        raise LaunchError(f"{len(exact)} names are over {MOST_NAMES}", where="net: uds", hint=hint)
    return {name: f"{NETWORK}{place // _PER_ROW}.{place % _PER_ROW + 1}" for place, name in enumerate(exact)}


def hosts_text(names: Iterable[str]) -> str:
    """Return the sandbox's /etc/hosts. Raises `LaunchError`, see `addresses_of`."""
    return _OWN + "".join(f"{address}\t{name}\n" for name, address in addresses_of(names).items())
