"""What is said on the keeper's two links, as typed structs.

A frame is four bytes of length, big-endian, and that much msgpack. `keeper.sock` carries the
workers' asks and the keeper's pushes; the admin socketpair, inherited from the supervisor, carries
the operator's. Each call has an id of the caller's choosing and gets one reply with that id.

| link | from | frame |
|---|---|---|
| both | caller | `Call {id, ask}`; `ask` is a struct tagged by its method |
| both | keeper | `Reply {id, ok}`, `Reply {id, reason}` (a denial) or `Reply {id, fault}` (what went wrong, in words) |
| keeper.sock | keeper | `Reply {push}`, with id 0 |

Longer than a module should be, since what can be said to the keeper is to be read on one page.
"""

from typing import ClassVar, Literal

import msgspec

from tidegate.audit.event import CallScope
from tidegate.secret import Secret
from tidegate.session.call import ToolCall
from tidegate.session.door import LaunchNote
from tidegate.session.identity import SessionId

__all__ = [
    "ADMIN_FRAME_BYTES",
    "ANOTHER_SOURCE",
    "FRAME_BYTES",
    "GATE_USER",
    "USERS",
    "AdminAsk",
    "AdminCall",
    "Announce",
    "AuditKey",
    "CaPem",
    "Checkpoint",
    "Commit",
    "ConfigRefused",
    "Configure",
    "Draw",
    "EpochPush",
    "FaultReport",
    "HarnessCall",
    "HarnessList",
    "HarnessNew",
    "HarnessOpened",
    "HarnessRevoke",
    "HarnessView",
    "Hello",
    "Holding",
    "KeeperStatus",
    "LaunchReport",
    "Lease",
    "LeaseAdded",
    "LeaseEnded",
    "LeaseGrant",
    "LiveSecret",
    "Number",
    "Numbered",
    "OpenSession",
    "Ping",
    "Pong",
    "Push",
    "Reply",
    "SessionEnded",
    "SessionEnv",
    "SessionFreeze",
    "SessionFrozen",
    "SessionGrant",
    "SessionList",
    "SessionNew",
    "SessionOpened",
    "SessionPush",
    "SessionRevoke",
    "SessionShow",
    "SessionThaw",
    "SessionView",
    "SignLeaf",
    "SourceBound",
    "Status",
    "Took",
    "WallDrop",
    "WallReport",
    "WorkerAsk",
    "WorkerCall",
]

FRAME_BYTES = 1 << 20
ADMIN_FRAME_BYTES = 64 << 20  # ten thousand rules; the supervisor is trusted
_NOTHING = msgspec.Raw()


class _Ask(msgspec.Struct, frozen=True, tag_field="method", tag=str.lower, forbid_unknown_fields=True):
    seconds: ClassVar[float] = 3.0  # how long the caller waits for the reply


# --- what the keeper tells a worker -------------------------------------------------------------


class LiveSecret(msgspec.Struct, frozen=True):
    """A secret to search for in replies; `ended` ones are never put on a request."""

    lease: str
    credential: str
    secret: Secret
    placeholder: str
    ended: bool = False


class Holding(msgspec.Struct, frozen=True):
    """A credential that a session holds, and the placeholder that stands for it."""

    credential: str
    placeholder: str


class SessionGrant(msgspec.Struct, frozen=True):
    """A session as its worker sees it. `expires_in` is in seconds from the reply; None has no end.

    A call's session stands where its parent does (`source`), and draws on the session budgets of `root`.
    """

    id: SessionId
    owner: str
    policy: str
    source: str | None
    expires_in: float | None
    frozen: bool
    holdings: tuple[Holding, ...]
    secrets: tuple[LiveSecret, ...]
    epoch: int
    call: CallScope | None = None
    root: SessionId | None = None


class LeaseGrant(msgspec.Struct, frozen=True):
    """A secret lent to a session for `expires_in` seconds."""

    lease_id: str
    credential: str
    secret: Secret
    expires_in: float


class SessionEnded(msgspec.Struct, frozen=True, tag="session_ended"):
    """The session is over: cut what it has open. `reason` is one of those that `exchange.ending` knows."""

    sid: SessionId
    reason: str


class SessionFrozen(msgspec.Struct, frozen=True, tag="session_frozen"):
    """The session is frozen, or thawed."""

    sid: SessionId
    frozen: bool


class LeaseAdded(msgspec.Struct, frozen=True, tag="lease_added"):
    """One more secret to search for in the session's replies."""

    sid: SessionId
    secret: LiveSecret


class LeaseEnded(msgspec.Struct, frozen=True, tag="lease_ended"):
    """The lease must not be used from now on; its secret is still searched for."""

    sid: SessionId
    lease: str


class EpochPush(msgspec.Struct, frozen=True, tag="epoch"):
    """The keeper has switched to this epoch."""

    n: int


class SourceBound(msgspec.Struct, frozen=True, tag="source_bound"):
    """The network was bound to a session: who else came from inside it must be asked about anew.

    It goes to every worker, so it does not say whose the network is now.
    """

    network: str


SessionPush = SessionEnded | SessionFrozen | LeaseAdded | LeaseEnded
Push = SessionPush | EpochPush | SourceBound


# --- what a worker asks --------------------------------------------------------------------------


class Hello(_Ask, frozen=True, tag="hello"):
    """Name the worker. `claim` is the secret by which it takes its chains up again on a new link. → Pong"""

    worker: str
    claim: str


class Ping(_Ask, frozen=True, tag="ping"):
    """Ask if the keeper still answers. → Pong"""

    seconds: ClassVar[float] = 1.5


class Pong(msgspec.Struct, frozen=True):
    """The keeper answers, and is at this epoch."""

    epoch: int


class OpenSession(_Ask, frozen=True, tag="open_session"):
    """Admit a connection by its token, its source, or both. → SessionGrant"""

    token: str | None
    source: str
    listener: str


class Lease(_Ask, frozen=True, tag="lease"):
    """Lend a credential to a session opened on this very link. → LeaseGrant"""

    seconds: ClassVar[float] = 35.0  # a command source has 30 s
    session: SessionId
    credential: str


class Took(_Ask, frozen=True, tag="took"):
    """Say that a `LeaseAdded` is in force here: every reply of the session is searched for that secret. → None"""

    session: SessionId
    lease: str


class SignLeaf(_Ask, frozen=True, tag="sign_leaf"):
    """Certify the worker's public key for a name. → tuple[bytes, ...], leaf first, without the root."""

    session: SessionId
    name: str
    public_key_der: bytes
    denied: bool


class Number(_Ask, frozen=True, tag="number"):
    """Give a name of a session opened here its number, from 1, the same each time. → int"""

    session: SessionId
    name: str


class Numbered(_Ask, frozen=True, tag="numbered"):
    """Ask which name of a session opened here has this number. → str, empty when none has"""

    session: SessionId
    number: int


class Draw(_Ask, frozen=True, tag="draw"):
    """Draw a prepaid slice of a budget. → int granted, at most a slice; the window is the kind's.

    `key` is `session`, `policy`, `owner` or `rule:ID`; for the kind `distinct_names` it has `:NAME` after it.
    """

    session: SessionId
    kind: str
    key: str
    amount: int
    limit: int


class Announce(_Ask, frozen=True, tag="announce"):
    """Say that this worker begins a chain, so that its absence can be seen later. → None"""

    chain: str


class Checkpoint(_Ask, frozen=True, tag="checkpoint"):
    """Sign (chain, seq, head), forward only. → bytes, a signed note. After the `last` one the chain is over."""

    chain: str
    seq: int
    head: str
    last: bool = False


WorkerAsk = Hello | Ping | OpenSession | Lease | Took | SignLeaf | Number | Numbered | Draw | Announce | Checkpoint


class WorkerCall(msgspec.Struct, frozen=True):
    """One call of a worker."""

    id: int
    ask: WorkerAsk


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """One frame of the keeper's: the reply to a call, or a push."""

    id: int = 0
    ok: msgspec.Raw = _NOTHING
    reason: str | None = None
    fault: str | None = None
    push: Push | None = None


# --- what the operator asks ----------------------------------------------------------------------


class Configure(_Ask, frozen=True, tag="configure"):
    """Check settings (`KeeperSettings`, encoded) and hold them for `commit`. → None"""

    seconds: ClassVar[float] = 15.0
    epoch: int
    settings: bytes
    proxy_urls: tuple[str, ...] = ()
    """Where a sandbox of the file's sessions reaches the gate, for STATE/sandbox/<session>/env; none: by name."""


class Commit(_Ask, frozen=True, tag="commit"):
    """Switch to the settings held for this epoch. → None"""

    seconds: ClassVar[float] = 15.0
    epoch: int


class FaultReport(_Ask, frozen=True, tag="fault_report"):
    """Put a fault that the supervisor has seen on the keeper's chain. → None

    `pids` are workers that are gone for certain: their chains need not wait for them to come back.
    """

    name: str
    detail: str
    pids: tuple[int, ...] = ()


class ConfigRefused(_Ask, frozen=True, tag="config_refused"):
    """Put a configuration that was refused at load on the keeper's chain, with every problem. → None"""

    file: str | None
    problems: tuple[str, ...]


GATE_USER = "the gate's user"
USERS = "users of the gate's namespace"
"""Where the rules stand that hold the gate's own user, among the devices of `WallDrop`."""


ANOTHER_SOURCE = "another source"
"""The rule of packets whose source is not the sandbox's: what such a packet says of itself is nothing."""


class WallDrop(msgspec.Struct, frozen=True):
    """Packets that the wall dropped, `times` alike; `client` and `address` None: known by their count alone."""

    device: str
    rule: str
    client: str | None
    transport: Literal["tcp", "udp", "icmp", "other"]
    address: str | None
    port: int | None
    times: int
    first: str
    last: str


class WallReport(_Ask, frozen=True, tag="wall_report"):
    """Put on the keeper's chain what the wall's watch saw: drops, and incidents by name and detail. → None"""

    drops: tuple[WallDrop, ...]
    incidents: tuple[tuple[str, str], ...]


class SessionNew(_Ask, frozen=True, tag="session_new"):
    """Open a session. → SessionOpened. `source` is a network it is bound to.

    `launch`: it is a launcher's, and ends with it. `doors`: its token is good behind its own doors only. `id` is a
    fresh one of the supervisor's, so that it can be revoked though no answer came. `call`: it is for one tool call;
    with a parent, `policy` None is the parent's, and `owner` is not asked (`keeper.calls`).
    """

    policy: str | None = None
    credentials: tuple[str, ...] = ()
    ttl_seconds: float | None = None
    owner: str = "default"
    source: str | None = None
    launch: bool = False
    doors: bool = False
    id: SessionId | None = None
    call: ToolCall | None = None


class LaunchReport(_Ask, frozen=True, tag="launch_report"):
    """Put on the keeper's chain what a launcher tells of a sandbox. → None. `session` may be over by then."""

    session: SessionId
    owner: str
    note: LaunchNote
    call: CallScope | None = None


class SessionList(_Ask, frozen=True, tag="session_list"):
    """List live sessions. → tuple[SessionView, ...]. `call` names a tool, a call's id, or both as `TOOL:ID`."""

    owner: str | None = None
    call: str | None = None


class SessionShow(_Ask, frozen=True, tag="session_show"):
    """Show one session. → SessionView"""

    id: SessionId


class SessionEnv(_Ask, frozen=True, tag="session_env"):
    """Mint the session's token again and give its placeholders. → SessionOpened"""

    id: SessionId


class SessionRevoke(_Ask, frozen=True, tag="session_revoke"):
    """End a session for good. → None"""

    id: SessionId


class SessionFreeze(_Ask, frozen=True, tag="session_freeze"):
    """Stop a session until it is thawed. → None"""

    id: SessionId


class SessionThaw(_Ask, frozen=True, tag="session_thaw"):
    """Let a frozen session go on. → None"""

    id: SessionId


class HarnessNew(_Ask, frozen=True, tag="harness_new"):
    """Make a harness token. → HarnessOpened. Its sessions are live at most `max_sessions` at once."""

    policies: tuple[str, ...]
    max_sessions: int
    ttl_seconds: float
    owner: str = "default"


class HarnessList(_Ask, frozen=True, tag="harness_list"):
    """List harness tokens (never the tokens themselves). → tuple[HarnessView, ...]"""


class HarnessRevoke(_Ask, frozen=True, tag="harness_revoke"):
    """End a harness token and every session it opened. → None"""

    id: str


class HarnessCall(_Ask, frozen=True, tag="harness_call"):
    """Do what a harness token may: open, list, show, env, revoke its own sessions. → as that ask's."""

    token: Secret
    ask: "SessionNew | SessionList | SessionShow | SessionEnv | SessionRevoke"


class AuditKey(_Ask, frozen=True, tag="audit_key"):
    """→ str, the public audit key as in STATE/audit.pub."""


class CaPem(_Ask, frozen=True, tag="ca_pem"):
    """→ str, the CA certificate."""


class Status(_Ask, frozen=True, tag="status"):
    """→ KeeperStatus"""


AdminAsk = (
    Configure
    | Commit
    | FaultReport
    | ConfigRefused
    | WallReport
    | LaunchReport
    | SessionNew
    | SessionList
    | SessionShow
    | SessionEnv
    | SessionRevoke
    | SessionFreeze
    | SessionThaw
    | HarnessNew
    | HarnessList
    | HarnessRevoke
    | HarnessCall
    | AuditKey
    | CaPem
    | Status
)


class AdminCall(msgspec.Struct, frozen=True):
    """One call of the supervisor."""

    id: int
    ask: AdminAsk


class SessionView(msgspec.Struct, frozen=True):
    """A session as an operator sees it: no token, no placeholder."""

    id: SessionId
    owner: str
    policy: str
    credentials: tuple[str, ...]
    source: str | None
    expires: float | None
    frozen: bool
    origin: str
    call: CallScope | None = None


class SessionOpened(msgspec.Struct, frozen=True):
    """What the sandbox of a session is given. `expires` is wall time; `placeholders` go by variable name.

    `owner` and `call` are the session's, by which records of it are made.
    """

    id: SessionId
    token: Secret
    expires: float | None
    placeholders: dict[str, str]
    owner: str = "default"
    call: CallScope | None = None


class HarnessOpened(msgspec.Struct, frozen=True):
    """A fresh harness token; it is shown once and kept as a hash."""

    id: str
    token: Secret
    expires: float


class HarnessView(msgspec.Struct, frozen=True):
    """A harness token as an operator sees it."""

    id: str
    policies: tuple[str, ...]
    owner: str
    max_sessions: int
    sessions: int
    expires: float


class KeeperStatus(msgspec.Struct, frozen=True):
    """How the keeper is, problems and warnings in plain words. `epoch` is the last one committed, over restarts."""

    epoch: int
    configured: bool
    sessions: int
    workers: int
    minter: bool
    problems: tuple[str, ...]
    warnings: tuple[str, ...] = ()
