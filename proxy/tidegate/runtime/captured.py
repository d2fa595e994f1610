"""The first layer of a connection that a client meant for somebody else: it knows of no proxy.

What it asks for is read from its first bytes and judged as if it had said CONNECT, by the same code, so that one
policy, one record and one tunnel serve both ways in.

| first bytes | name | port |
|---|---|---|
| any, at a virtual address | the one that the sandbox's DNS gave this address to | the one dialled |
| a ClientHello | its server name; without one, the address that was dialled | the one dialled |
| an HTTP head | Host, or the authority of an absolute target | the one dialled |
| anything else | none: `not_http` | |

A virtual address names a `tcp` destination before a byte is said. Where HTTP or TLS follows, what that says must agree
with it, as behind any CONNECT.

The address that was dialled is never dialled on the strength of a name (invariant 3): where the name leads is looked
up, as for any other way in.
"""

import re
from dataclasses import dataclass
from ipaddress import ip_address
from typing import override

from mitmproxy.connection import ConnectionState
from mitmproxy.proxy import commands, events, layer
from mitmproxy.proxy.context import Context

from tidegate.exchange.channel import Channel
from tidegate.exchange.connect import called
from tidegate.exchange.head import RequestHead, early_reason, parse_request_head
from tidegate.exchange.reply import Denial
from tidegate.exchange.virtual import Called
from tidegate.policy.names import IPAddress, host_text, parse_authority
from tidegate.policy.reasons import Reason
from tidegate.policy.target import parse_absolute
from tidegate.runtime.entry import EntryLayer
from tidegate.runtime.hello import BadHello, HelloReader
from tidegate.runtime.http1_message import denial_bytes
from tidegate.runtime.tls import Contexts

__all__ = ["CapturedLayer", "NameHook", "Naming", "name_virtual"]

_HELLO = 0x16
_LETTER = re.compile(rb"[A-Za-z]")
# A fatal alert, access_denied (RFC 8446 section 6): said in clear, since the handshake has not begun.
_ACCESS_DENIED = b"\x15\x03\x03\x00\x02\x02\x31"

Commands = layer.CommandGenerator[None]


class Naming:
    """A virtual address that was dialled, and, when the hook has run, whose it is."""

    __slots__ = ("address", "channel", "found", "port")

    def __init__(self, channel: Channel, address: IPAddress, port: int) -> None:
        self.channel = channel
        self.address = address
        self.port = port
        self.found: Called | Reason | None = None


@dataclass
class NameHook(commands.StartHook):
    """Ask whose a virtual address is, before anything that comes to it is read."""

    naming: Naming
    blocking = True


async def name_virtual(naming: Naming) -> None:
    """Look the name up; the hook's handler."""
    naming.found = await called(naming.channel, naming.address, naming.port)


class CapturedLayer(EntryLayer):
    """Reads the first bytes until they name a destination; then a tunnel, as after CONNECT."""

    def __init__(self, context: Context, channel: Channel, contexts: Contexts, destination: tuple[str, int]) -> None:
        super().__init__(context, channel, contexts)
        self.dialled, self.port = channel.dialled = destination
        self.called: str | None = None
        self.hello = HelloReader()

    @override
    def _handle_event(self, event: events.Event) -> Commands:
        if isinstance(event, events.Start):
            yield from self._name()
        else:
            yield from super()._handle_event(event)

    def _name(self) -> Commands:
        """Learn whose the address is, if it is a virtual one; judge at once what need not be read."""
        virtual = self.channel.gate.virtual
        if not virtual.used:
            return
        address = ip_address(self.dialled)
        if virtual.number(address) is None:
            return
        naming = Naming(self.channel, address, self.port)
        yield NameHook(naming)
        found = naming.found
        if isinstance(found, Reason):
            yield from self._refuse(found)
        elif found is not None and found.at_once:
            yield from self._tunnel(found.name)
        else:
            # Whose it is, is known by now: it is no stranger any more, whom another clock would end.
            self.channel.head_began()
            self.called = None if found is None else found.name

    def _tunnel(self, name: str) -> Commands:
        yield from self._connect(RequestHead("CONNECT", self._target(name), 1, [], 0, None))

    @override
    def _advance(self) -> Commands:
        if self.child is not None or self.done or not self.buffer:
            return
        self.channel.head_began()
        if self.buffer[0] == _HELLO:
            named = self._read_hello()
        elif _LETTER.match(self.buffer):
            self.channel.plain = True
            named = self._read_head()
        else:
            named = Reason.NOT_HTTP
        if named is None:
            return
        self.channel.head_ended()
        if isinstance(named, Reason):
            yield from self._refuse(named)
            return
        # What was read stays in the buffer, for the layer inside.
        yield from self._connect(RequestHead("CONNECT", named, 1, [], 0, None))

    def _read_hello(self) -> bytes | Reason | None:
        try:
            hello = self.hello.read(self.buffer)
        except BadHello:
            return Reason.NOT_HTTP
        if hello is None:
            return None
        return self._target(self.called or (self.dialled if hello.sni is None else hello.sni))

    def _read_head(self) -> bytes | Reason | None:
        end = self.buffer.find(b"\r\n\r\n")
        limits = self.channel.gate.head_limits
        if end < 0:
            too_long = len(self.buffer) > limits.header_bytes + limits.url_bytes
            return early_reason(self.buffer, limits) or (Reason.HEADERS_TOO_LARGE if too_long else None)
        head = parse_request_head(bytes(self.buffer[:end]), limits)
        if isinstance(head, Reason):
            return head
        if head.method == "CONNECT":
            return Reason.LOOP  # it takes us for a proxy, and dialled somebody else
        return self._name_of(head)

    def _name_of(self, head: RequestHead) -> bytes | Reason:
        if self.called is not None:
            return self._target(self.called)
        if not head.target.startswith(b"/"):
            absolute = parse_absolute(head.target)
            if isinstance(absolute, Reason):
                return absolute
            return self._target(host_text(absolute.authority.host))
        if head.authority is None:
            return self._target(self.dialled)
        authority = parse_authority(head.authority, default_port=self.port)
        return authority if isinstance(authority, Reason) else self._target(host_text(authority.host))

    def _target(self, name: str) -> bytes:
        """Return the target of the CONNECT that stands for this connection."""
        shown = f"[{name}]" if ":" in name and not name.startswith("[") else name
        return f"{shown}:{self.port}".encode("utf-8", "surrogateescape")

    @override
    def _established(self) -> Commands:
        """Say nothing: this client has asked for nothing but its tunnel's inside."""
        yield from ()

    @override
    def _deny(self, reply: Denial) -> Commands:
        said = _ACCESS_DENIED if self.buffer[:1] == bytes([_HELLO]) else denial_bytes(reply)
        # To one that has said nothing yet, whatever its protocol is, nothing is said.
        if self.buffer and self.context.client.state is not ConnectionState.CLOSED:
            yield commands.SendData(self.context.client, said)
        yield from self._close()

    @override
    def _refuse(self, reason: Reason) -> Commands:
        if self.buffer[:1] in (b"", bytes([_HELLO])):
            self.channel.refuse(reason)
            yield from self._close()
        else:
            yield from super()._refuse(reason)
