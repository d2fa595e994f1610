"""One network's end at the gate: which of its addresses names lead to, by the listener that was asked."""

from collections.abc import Collection, Sequence
from ipaddress import ip_address

from tidegate.config.model import Listener
from tidegate.policy.names import IPAddress

__all__ = ["names_lead_to"]


def names_lead_to(
    asked: Listener, by_name: Sequence[Listener], devices: Collection[tuple[str, str]]
) -> tuple[IPAddress, ...]:
    """Return the addresses that a name's answer may give, the first of a family first.

    They are those of the `tls` listeners on the device of the responder that was asked; without such a listener
    anywhere, the responder's own address, for what a wall redirects. `devices` are addresses with their devices.
    """
    if not by_name:
        return (ip_address(asked[0]),)
    beside = {device for address, device in devices if address == asked[0]}
    here = {asked[0], *(address for address, device in devices if device in beside)}
    near = [host for host, _ in by_name if host in here]
    return tuple(ip_address(host) for host in near or [by_name[0][0]])
