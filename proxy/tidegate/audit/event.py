"""The records: one common part, then one block named as its type (`session_event` for `session`).

Pure data. What a writer adds by itself (`v ts mono_ns chain seq prev`) is `Stamp`; the rest of
the common part is `Common`; the blocks follow. Text from outside is `Loggable`, which only
`audit.redact` makes; plain `str` fields hold the operator's words or ours.
"""

from typing import ClassVar, Literal, NamedTuple

import msgspec

from tidegate.audit.redact import Loggable, loggable
from tidegate.policy.reasons import Verdict

__all__ = [
    "BLOCKS",
    "SCHEMA_VERSION",
    "Block",
    "CallScope",
    "Checkpoint",
    "Common",
    "Config",
    "Conn",
    "Credential",
    "Dns",
    "Fault",
    "Grant",
    "Head",
    "Http",
    "Incident",
    "Launch",
    "Phase",
    "Session",
    "Stamp",
    "Subject",
    "Writer",
    "Ws",
]

SCHEMA_VERSION = 1

Phase = Literal["decision", "end", "event"]


class Head(NamedTuple):
    """Where a chain stands: the last `seq` and the hash of that line. Seq -1 is a chain without a line."""

    chain: str
    seq: int
    head: str


class LogLimit(msgspec.Struct, frozen=True, gc=False):
    """A log budget that counts in all workers: `scope` is `session`, `policy` or `owner`, `pool` names which one."""

    scope: str
    pool: str
    bytes_per_hour: int


class CallScope(msgspec.Struct, frozen=True, gc=False):
    """The tool call that a session is for. `tool` and `id` are a model's words, escaped and cut; vouch for nothing."""

    tool: Loggable
    id: Loggable
    parent: str | None = None
    """The session that the call is made in, and that its own ends with."""

    def is_named(self, wanted: str) -> bool:
        """Tell whether this is what `wanted` names: a tool, an id, or `TOOL:ID`, as they were given or as escaped."""
        return not {wanted, loggable(wanted)}.isdisjoint((self.tool, self.id, f"{self.tool}:{self.id}"))


class Subject(msgspec.Struct, frozen=True, gc=False):
    """Whom a record is about: made once a session, handed to every call of the recorder."""

    session: str | None = None
    owner: str | None = None
    call: CallScope | None = None
    policy_hash: str | None = None
    log_bytes_per_hour: int | None = None
    """None: the recorder's default."""
    log_limits: tuple[LogLimit, ...] = ()


class Stamp(msgspec.Struct, frozen=True, kw_only=True):
    """What the writer adds: schema version, both clocks, place in the chain.

    `prev` is the SHA-256 of the line before, without its newline; 64 zeros at seq 0.
    """

    v: int
    ts: str
    mono_ns: int
    chain: str
    seq: int
    prev: str


class Common(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What every record says, whatever its type."""

    session: str | None
    owner: str | None
    call: CallScope | None = None
    """The tool call that the session is for: `tool` and `id`, a model's words; `parent`, the session it is made in."""
    flow: str | None
    parent: str | None
    type: str
    phase: Phase
    verdict: Verdict | None
    reason: str | None
    rule: str | None
    policy_hash: str | None
    observed: bool = False
    """Let through only because the policy observes; `reason` is what enforcing would have said."""
    count: int | None = None
    """How many repeats this one record stands for, between `first` and `last`."""
    first: str | None = None
    last: str | None = None


class Block(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The base of the blocks: `kind` is the record's type, `key` the block's name in the record.

    They are the same but for `session`, since the common part has a `session` of its own.
    """

    kind: ClassVar[str] = ""
    key: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        cls.key = cls.key or cls.kind

    @property
    def subject_name(self) -> str | None:
        """The name the record is about, by which repeats are folded and `log --host` filters."""
        return None


class Conn(Block, frozen=True, kw_only=True, gc=False):
    """A connection of the sandbox, from admission to its close.

    `end` says how it ended: `closed`; `client_left`, the client went away with something under way, or before it
    had asked for anything; `drained`, it stood idle when the gate began to stop; `stopped`, it was still under way
    when the gate had to end; `reloaded`, the configuration of now would not begin it; `revoked` or `expired`, its
    session was; else the code of the reason for which it was refused, cut or given up.
    """

    kind: ClassVar[str] = "conn"
    client: str | None = None
    transport: Literal["tcp", "udp", "icmp", "other"] = "tcp"
    name: Loggable | None = None
    port: int | None = None
    address: str | None = None
    vetted: tuple[str, ...] | None = None
    bytes_up: int | None = None
    """Bytes that left towards upstreams: an opaque tunnel's, or the heads, bodies and frames of all its requests."""
    bytes_down: int | None = None
    duration_ms: int | None = None
    end: str | None = None

    @property
    def subject_name(self) -> str | None:
        """The name asked for."""
        return self.name


class Http(Block, frozen=True, kw_only=True, gc=False):
    """A request; `parent` of the record is the connection's flow."""

    kind: ClassVar[str] = "http"
    version: Loggable | None = None
    method: Loggable | None = None
    scheme: Loggable | None = None
    host: Loggable | None = None
    port: int | None = None
    path: Loggable | None = None
    query: Loggable | None = None
    """Names in clear, values as keyed hashes."""
    credential: str | None = None
    location: Loggable | None = None
    """The target of a refused or removed redirect."""
    status: int | None = None
    address: str | None = None
    """The upstream's address that served it."""
    bytes_up: int | None = None
    """Bytes that left: the head as HTTP/1.1 writes it, target and headers included, and the body; 0 when nothing did.

    These are what upload budgets count. Of a WebSocket its bytes are in it too.
    """
    bytes_down: int | None = None
    duration_ms: int | None = None
    end: str | None = None
    """What broke it off, in the words of `conn`'s `end`; null where it came to its own end, or was denied."""

    @property
    def subject_name(self) -> str | None:
        """The host."""
        return self.host


class Dns(Block, frozen=True, kw_only=True, gc=False):
    """A question of the sandbox and what it was told."""

    kind: ClassVar[str] = "dns"
    name: Loggable | None = None
    rrtype: Loggable | None = None
    answer: tuple[str, ...] | None = None

    @property
    def subject_name(self) -> str | None:
        """The name asked about."""
        return self.name


class Credential(Block, frozen=True, kw_only=True, gc=False):
    """A credential or its placeholder: used, leased, refused, seen as inert text, hidden in a reply."""

    kind: ClassVar[str] = "credential"
    name: str | None = None
    act: Literal["use", "lease", "refuse", "seen", "scrub", "end"] = "use"
    place: str | None = None
    lease: str | None = None
    source: str | None = None
    host: Loggable | None = None
    hits: int | None = None

    @property
    def subject_name(self) -> str | None:
        """The credential's name."""
        return self.name


class Ws(Block, frozen=True, kw_only=True, gc=False):
    """A WebSocket's whole life."""

    kind: ClassVar[str] = "ws"
    host: Loggable | None = None
    bytes_up: int | None = None
    """Bytes that left, the head of the request included."""
    bytes_down: int | None = None
    duration_ms: int | None = None

    @property
    def subject_name(self) -> str | None:
        """The host."""
        return self.host


class Grant(Block, frozen=True, kw_only=True, gc=False):
    """A grant and who gave it."""

    kind: ClassVar[str] = "grant"
    id: str
    act: Literal["ask", "approve", "refuse", "use", "revoke", "expire"]
    method: Loggable | None = None
    host: Loggable | None = None
    path: Loggable | None = None
    uses: int | None = None
    seconds: int | None = None
    body_bytes: int | None = None
    approver: Loggable | None = None
    why: Loggable | None = None

    @property
    def subject_name(self) -> str | None:
        """The host it opens."""
        return self.host


class Session(Block, frozen=True, kw_only=True, gc=False):
    """A step in a session's life."""

    kind: ClassVar[str] = "session"
    key: ClassVar[str] = "session_event"
    id: str
    act: Literal["open", "join", "freeze", "thaw", "revoke", "expire", "refuse", "delegate", "recall"]
    """`delegate` and `recall`: a harness token that may open sessions of its own was given, or taken back."""
    origin: str | None = None
    """Who opened it: `file`, `admin`, `launch` for a launcher, or `harness:` and the harness's id."""
    policy: str | None = None
    source: str | None = None
    listener: str | None = None
    credentials: tuple[str, ...] | None = None
    ttl_seconds: int | None = None


class Launch(Block, frozen=True, kw_only=True, gc=False):
    """A sandbox: what ran, within what, and how it ended, as its launcher tells it."""

    kind: ClassVar[str] = "launch"
    id: Loggable
    act: Literal["start", "end", "reset", "refuse"]
    boundary: Loggable | None = None
    net: Loggable | None = None
    image: Loggable | None = None
    argv: Loggable | None = None
    """The command on one line, redacted and cut by the launcher."""
    limits: dict[Loggable, float] | None = None
    outcome: Loggable | None = None
    untrusted_exit_code: int | None = None
    """The sandbox's own word."""
    duration_ms: int | None = None
    truncated: bool | None = None
    """Whether its output was cut at the limit."""


class Config(Block, frozen=True, kw_only=True, gc=False):
    """A configuration taken or refused, by its epoch and hash."""

    kind: ClassVar[str] = "config"
    act: Literal["load", "commit", "refuse", "unsafe"]
    epoch: int | None = None
    hash: str | None = None
    file: Loggable | None = None
    problems: tuple[Loggable, ...] | None = None


class Incident(Block, frozen=True, kw_only=True, gc=False):
    """Something a person should look at: a reach for metadata, a refused placeholder, a used-up cap."""

    kind: ClassVar[str] = "incident"
    name: str
    """What kind of incident, one of our words."""
    host: Loggable | None = None
    credential: str | None = None
    detail: Loggable | None = None

    @property
    def subject_name(self) -> str | None:
        """The kind and, where there is one, the host."""
        return f"{self.name} {self.host}" if self.host else self.name


class Fault(Block, frozen=True, kw_only=True, gc=False):
    """Something of ours that broke. `where` is module and function or file and line, never a traceback."""

    kind: ClassVar[str] = "fault"
    name: str
    where: str | None = None
    detail: Loggable | None = None

    @property
    def subject_name(self) -> str | None:
        """The kind of fault and its place, so that an exception storm folds into one record (V-17)."""
        return f"{self.name} {self.where}"


class Checkpoint(Block, frozen=True, kw_only=True, gc=False):
    """A head of this chain, signed by the keeper: a C2SP tlog-checkpoint note over `seq` + 1 lines."""

    kind: ClassVar[str] = "checkpoint"
    covers: int
    """The `seq` of the last line that the note covers."""
    head: str
    note: str


class Writer(Block, frozen=True, kw_only=True, gc=False):
    """A chain's own marks (`start`, `torn`, `stop`), and the keeper's book of chains (`born`, `head`, `dead`).

    `torn`: a line before this one was cut short and could not be taken back; `torn_bytes` of it
    stand at the end of the segment before, with hash `torn_sha256`. `dead` may say the same of a
    chain whose process was killed in the middle of a line.
    """

    kind: ClassVar[str] = "writer"
    act: Literal["start", "stop", "torn", "born", "head", "dead"]
    chain: str
    role: Literal["keeper", "gate", "launcher", "wall", "console", "other"] | None = None
    seq: int | None = None
    head: str | None = None
    pid: int | None = None
    version: str | None = None
    torn_bytes: int | None = None
    torn_sha256: str | None = None


BLOCKS: tuple[type[Block], ...] = (
    Conn, Http, Dns, Credential, Ws, Grant, Session, Launch, Config, Incident, Fault, Checkpoint, Writer,
)  # fmt: skip
