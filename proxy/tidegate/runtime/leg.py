"""One network's end at the gate: which of its addresses names lead to, by the responder that was asked."""

from collections.abc import Collection, Sequence
from ipaddress import ip_address

from tidegate.config.model import Listener
from tidegate.policy.names import IPAddress

__all__ = ["names_lead_to"]


def names_lead_to(asked: Listener, takers: Sequence[Listener], devices: Collection[tuple[str, str]]) -> IPAddress:
    """Return the address of ours to which names lead for who asked this responder.

    It is that of the listener, of those that take what comes for a name, on the same device; without one there, the
    responder's own, for what a wall redirects. `devices` are addresses with their devices. The family is the one that
    was asked by: a session is known by its source, and of the other family it may have none.
    """
    own = ip_address(asked[0])
    beside = {device for address, device in devices if address == asked[0]}
    here = {asked[0], *(address for address, device in devices if device in beside)}
    near = (address for host, _ in takers if host in here and (address := ip_address(host)).version == own.version)
    return next(near, own)
