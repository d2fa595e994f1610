"""What is wanted of a launch, and what came of it."""

from pathlib import Path
from typing import Final

import msgspec

from tidegate.errors import LaunchError
from tidegate_launcher.boundary import Boundary, Capability, require
from tidegate_launcher.files.outputs import Collected, check_folder
from tidegate_launcher.job import Limits, Net
from tidegate_launcher.lease import Ask
from tidegate_launcher.result import Result

__all__ = ["LIMITS", "NETWORK", "Launched", "Order", "check_order"]

NETWORK: Final[dict[Net, Capability]] = {
    "none": Capability.NET_NONE,
    "uds": Capability.NET_UDS,
    "veth": Capability.NET_VETH,
}
"""What a kind of network asks of a boundary."""
LIMITS: Final = frozenset(
    {Capability.MEMORY, Capability.CPUS, Capability.PIDS, Capability.DISK, Capability.TIME, Capability.OUTPUT}
)
"""All limits."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What is wanted. `root` is the image's folder and `image` its digest; `ask` None: no gate, and so no network.

    `environment` is added to what the session gives, and wins over it nowhere that a placeholder or a certificate is.
    """

    argv: tuple[str, ...]
    root: Path
    image: str = ""
    ask: Ask | None = None
    net: Net = "none"
    limits: Limits = Limits()
    inputs: tuple[Path, ...] = ()
    out: Path | None = None
    environment: tuple[tuple[str, str], ...] = ()
    wanted: frozenset[Capability] | None = None
    """What must be enforced: None, the network and all limits. The rest is, where the boundary can."""


class Launched(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it. `dropped` are packets that the wall dropped, by rule; `session` is empty without a gate.

    `faults` are ours, of what was done after the command: the record of its end, the copying of its files. The result
    stands beside them, since it has run; it is no success.
    """

    id: str
    result: Result
    session: str = ""
    outputs: Collected | None = None
    dropped: dict[str, int] = {}
    faults: tuple[str, ...] = ()


def check_order(order: Order, boundary: Boundary, state: Path | None) -> None:
    """Raise `LaunchError` for what this boundary cannot do, and for what is not there."""
    require(boundary, LIMITS | {NETWORK[order.net]} if order.wanted is None else order.wanted)
    if order.net != "none" and (order.ask is None or state is None):
        raise LaunchError("a network leads to a gate, and there is none", where="--net", hint="give --policy, or none")
    if order.out is not None:
        check_folder(order.out)
