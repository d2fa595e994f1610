"""Virtual addresses: what the sandbox's DNS says in place of a real one, and which name a connection to it is for.

A raw protocol (ssh, Postgres, SMTP) says no name on the wire. So the responder gives every allowed name an address of
its own out of two networks that lead nowhere, one a session and name, and whoever dials it has named the name.
"""

from ipaddress import ip_network
from typing import NamedTuple, Protocol

from tidegate.config.model import DnsSettings
from tidegate.policy.names import HostName, IPAddress
from tidegate.policy.reasons import Reason
from tidegate.session.identity import IPNetwork, SessionId

__all__ = ["Called", "Numbers", "VirtualNames", "VirtualNetworks"]


class Numbers(Protocol):
    """What is asked of the keeper."""

    async def number(self, session: SessionId, name: HostName) -> int | Reason: ...  # noqa: D102 - as KeeperClient
    async def numbered(self, session: SessionId, number: int) -> str | Reason: ...  # noqa: D102


class Called(NamedTuple):
    """The name that a virtual address stands for.

    `at_once`: no byte need be read to judge the connection, since what follows passes unread, or nothing may.
    """

    name: HostName
    at_once: bool


class VirtualNetworks:
    """The networks, by version."""

    def __init__(self, settings: DnsSettings) -> None:
        self._networks: tuple[IPNetwork, ...] = (ip_network(settings.virtual_v4), ip_network(settings.virtual_v6))
        self.used = settings.answer == "virtual"

    def address(self, number: int, version: int) -> IPAddress:
        """Return the address with this number."""
        return next(network for network in self._networks if network.version == version)[number]

    def number(self, address: IPAddress) -> int | None:
        """Return the number of an address; None for one of no such network, or when none is in use."""
        if not self.used:
            return None
        for network in self._networks:
            if address.version == network.version and address in network:
                return int(address) - int(network.network_address)
        return None


class VirtualNames:
    """The names of one session as far as this worker has heard of them."""

    __slots__ = ("_names", "_numbers")

    def __init__(self) -> None:
        self._numbers: dict[HostName, int] = {}
        self._names: dict[int, HostName] = {}

    async def number(self, keeper: Numbers, session: SessionId, name: HostName) -> int | Reason:
        """Return the name's number."""
        found: int | Reason | None = self._numbers.get(name)
        if found is None:
            found = await keeper.number(session, name)
            if not isinstance(found, Reason):
                self._numbers[name], self._names[found] = found, name
        return found

    async def name(self, keeper: Numbers, session: SessionId, number: int) -> HostName | Reason | None:
        """Return whose number it is; None when no name of the session has it."""
        found = self._names.get(number)
        if found is not None:
            return found
        told = await keeper.numbered(session, number)
        if isinstance(told, Reason):
            return told
        if not told:
            return None
        name = HostName(told)
        self._numbers[name], self._names[number] = number, name
        return name
