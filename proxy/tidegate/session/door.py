"""What is said on STATE/launch.sock, by a launcher and by the gate: one msgpack map a datagram.

A door is a listening socket that belongs to one session: who comes by it is that session. The connection is the
lease: when it ends, the doors are closed and the session is revoked.

| launcher says | gate answers |
|---|---|
| `{open: Opening}`, once and first, with the doors' sockets as ancillary data | `{opened: Opened}` |
| `{launch: LaunchNote}`, any number | `{}` |
| what cannot be done | `{error: {what, where, hint}}`; a fault in the form of a message ends the connection |

Sockets come in the order of `doors`; a `dns` door has two, UDP and TCP.
"""

from typing import Annotated, Final, Literal

import msgspec

from tidegate.errors import LaunchError
from tidegate.session.call import ToolCall
from tidegate.session.identity import SessionId

__all__ = [
    "MESSAGE_BYTES",
    "MOST_DOORS",
    "MOST_SOCKETS",
    "Answer",
    "DoorSpec",
    "DoorWay",
    "LaunchNote",
    "Opened",
    "Opening",
    "Refusal",
    "Request",
    "decode_request",
]

MESSAGE_BYTES: Final = 64 * 1024
MOST_DOORS: Final = 16
MOST_SOCKETS: Final = 24

type DoorWay = Literal["http", "tls", "transparent", "dns"]
type _Word = Annotated[str, msgspec.Meta(max_length=64)]
type _Packets = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
type _Amount = Annotated[float, msgspec.Meta(ge=0, le=1e18)]  # no NaN and no infinity, which JSON has no word for


class _Said(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The base of what is sent."""


class DoorSpec(_Said, frozen=True):
    """One door. `port` is the one that clients dial, where the socket has none of its own (a unix socket)."""

    way: DoorWay
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0

    @property
    def sockets(self) -> int:
        """How many sockets it is made of."""
        return 2 if self.way == "dns" else 1


class Opening(_Said, frozen=True, kw_only=True):
    """The session that a launcher wants, and its doors. `names`: tell the policy's exact names too.

    `call`: it is for one tool call. With a parent it is never wider than that, has its owner, and ends with it.
    """

    policy: Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
    credentials: Annotated[tuple[Annotated[str, msgspec.Meta(max_length=128)], ...], msgspec.Meta(max_length=64)] = ()
    owner: Annotated[str, msgspec.Meta(min_length=1, max_length=64)] = "default"
    ttl_seconds: float | None = None
    doors: Annotated[tuple[DoorSpec, ...], msgspec.Meta(max_length=MOST_DOORS)] = ()
    names: bool = False
    call: ToolCall | None = None


class Opened(_Said, frozen=True, kw_only=True):
    """The session that was opened. `env` is for the sandbox, which sees the certificates in `/tidegate`."""

    id: SessionId
    token: str
    env: dict[str, str]
    names: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Opened({self.id})"  # the token is a secret (invariant 5)


class LaunchNote(_Said, frozen=True, kw_only=True):
    """What a launcher puts on record about a sandbox of its session. `argv` is redacted by then, on one line.

    `dropped` counts the packets that the sandbox's wall took, by its rule.
    """

    id: _Word
    act: Literal["start", "end", "reset", "refuse"]
    boundary: _Word | None = None
    net: _Word | None = None
    image: Annotated[str, msgspec.Meta(max_length=256)] | None = None
    argv: Annotated[str, msgspec.Meta(max_length=4096)] | None = None
    limits: Annotated[dict[_Word, _Amount], msgspec.Meta(max_length=32)] | None = None
    outcome: _Word | None = None
    untrusted_exit_code: Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31)] | None = None
    seconds: Annotated[float, msgspec.Meta(ge=0, le=1e9)] | None = None
    truncated: bool | None = None
    dropped: Annotated[dict[_Word, _Packets], msgspec.Meta(max_length=16)] = {}


class Request(_Said, frozen=True):
    """One message of a launcher's: one of the two."""

    open: Opening | None = None
    launch: LaunchNote | None = None


class Refusal(_Said, frozen=True):
    """Why something was not done."""

    what: str
    where: str = ""
    hint: str = ""


class Answer(_Said, frozen=True):
    """One message of the gate's; empty for a record that was written."""

    opened: Opened | None = None
    error: Refusal | None = None


def decode_request(data: bytes) -> Request:
    """Read a launcher's message. Raises `LaunchError`."""
    try:
        request = msgspec.msgpack.decode(data, type=Request)
    except (msgspec.MsgspecError, UnicodeDecodeError) as fault:
        raise LaunchError(f"the message cannot be read: {fault}", where="launch.sock") from fault
    if (request.open is None) == (request.launch is None):
        raise LaunchError("a message either opens a session or records a launch", where="launch.sock")
    return request
