"""The one model of the configuration, as the running processes see it.

Everything here is frozen, checked and normalised by `load`; nothing needs a second look. The text
under each field is its reference documentation (`docs/reference/configuration.md` is made from it),
and the default is the default of the file. `GateSettings` is what a worker gets: it cannot hold a
source of a secret, since it has no field for one (invariant 5).
"""

import hashlib
from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

from tidegate.config.shapes import ENV_NAME, LISTENER, NAT64, NETWORK, SERVER
from tidegate.credentials.spec import CredentialSpec
from tidegate.policy.rules import PolicySpec, Rule

__all__ = [
    "AuditSettings",
    "CommandSource",
    "Count",
    "DnsSettings",
    "EnvSource",
    "FileSource",
    "GateSettings",
    "KeeperSettings",
    "Limits",
    "ListenSettings",
    "Listener",
    "Network",
    "ResolverSettings",
    "Seconds",
    "SessionSpec",
    "Settings",
    "SourceSpec",
    "UpstreamSettings",
    "WallSettings",
    "address_text",
    "decode_gate",
    "decode_keeper",
    "encode_gate",
    "encode_keeper",
]

type Listener = tuple[str, int]
type Listeners = Annotated[tuple[Listener, ...], LISTENER]
type Network = Annotated[str, NETWORK]
type Server = Annotated[str, SERVER]
type Count = Annotated[int, msgspec.Meta(ge=1)]
type Seconds = Annotated[float, msgspec.Meta(ge=0.1, le=86400.0)]


def address_text(address: Listener) -> str:
    """Return `host:port`, an IPv6 host in brackets."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class ListenSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where sandboxes reach the gate. Each is `host:port`, a list of those (one a network, one a family), or `off`."""

    http: Listeners = (("127.0.0.1", 8080),)
    """HTTP proxy and CONNECT."""
    socks: Listeners = ()
    """SOCKS5."""
    transparent: Listeners = ()
    """Target of the wall's redirect of all TCP."""
    tls: Listeners = ()
    """TLS by server name, for names that lead to the gate; with port 443, plain HTTP by Host on port 80 as well."""
    dns: Listeners = ()
    """DNS responder, UDP and TCP; names lead to the `tls` listeners of the same device."""

    def ports(self) -> frozenset[int]:
        """Return the ports that the gate itself listens on: never a destination on its own machine."""
        return frozenset(port for _, (_, port) in self.named())

    def named(self) -> tuple[tuple[str, Listener], ...]:
        """Return every address that is listened on, each with the key that gives it."""
        given = (("http", self.http), ("socks", self.socks), ("transparent", self.transparent), ("dns", self.dns))
        found = [(f"listen.{key}", address) for key, addresses in given for address in addresses]
        return (*found, *(("listen.tls", address) for address in self.by_name()))

    def texts(self) -> dict[str, list[str]]:
        """Return what is listened on as people write it, by key."""
        return {key: [address_text(one) for one in getattr(self, key)] for key in self.__struct_fields__}

    def by_name(self) -> tuple[Listener, ...]:
        """Return the addresses at which names lead to the gate."""
        return (*self.tls, *((host, 80) for host, port in self.tls if port == 443))


class WallSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rules around the sandboxes' links (`tidegate wall`), as far as the gate asks after them."""

    watch: Literal["off", "required"] = "off"
    """`required`: without `tidegate wall watch` the gate is not ready; `off`: only one that was there must stay."""


class AuditSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The audit log."""

    dir: str = "STATE/audit"
    """Folder of the chains. A leading `STATE/` stands for `state_dir`."""
    fsync: Literal["interval", "always", "never"] = "interval"
    """When records are forced to the disk: once a second, each before its effect, or when the kernel likes."""
    checkpoint_events: Count = 1000
    """A checkpoint is signed after this many records,"""
    checkpoint_seconds: Seconds = 10.0
    """and at the latest after this many seconds."""


class ResolverSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the gate looks names up. Hosts files and search lists are never used."""

    servers: tuple[Server, ...] = ()
    """DNS servers as `address` or `address:port`; empty: those of /etc/resolv.conf."""
    zones: dict[str, tuple[Server, ...]] = {}
    """Servers of single zones: `{"test.": ["10.0.0.1:53"]}`."""
    timeout_seconds: Seconds = 5.0
    """Longest time for one whole look-up."""
    max_ttl_seconds: Seconds = 300.0
    """An answer is kept for its TTL, and never longer than this."""
    nat64_prefixes: tuple[Annotated[str, NAT64], ...] = ()
    """NAT64 prefixes of the site; an IPv4 address inside one is judged as what it stands for."""


class DnsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the sandbox's DNS says. A query never causes an upstream packet."""

    answer: Literal["gate", "virtual"] = "gate"
    """Answer to an allowed name: the gate's own address, or a virtual one per session and name."""
    denied: Literal["nxdomain", "sinkhole"] = "nxdomain"
    """Answer to any other name."""
    virtual_v4: Network = "198.18.0.0/15"
    """Network of virtual IPv4 addresses."""
    virtual_v6: Network = "fd7a:7469:6465::/64"
    """Network of virtual IPv6 addresses."""


class UpstreamSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The way from the gate to a destination."""

    ca_file: str = "system"
    """Trusted roots: `system` ($SSL_CERT_FILE, else the system's bundle), or a PEM file in its place."""
    extra_ca_files: tuple[str, ...] = ()
    """PEM files trusted beside `ca_file`."""
    connect_timeout_seconds: Seconds = 10.0
    """Longest time for one connection, all vetted addresses and TLS together."""
    pin_max_age_seconds: Seconds = 300.0
    """A connection is never opened to an address that was vetted longer ago than this."""


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds on what one client can make the gate hold."""

    header_bytes: Count = 65536
    """Bytes of one header block."""
    headers: Count = 200
    """Header lines of one message."""
    url_bytes: Count = 16384
    """Bytes of a request target."""
    header_timeout_seconds: Seconds = 10.0
    """Time for a whole header block to arrive, for a tunnel to begin, for a new connection to show its session."""
    stall_timeout_seconds: Seconds = 120.0
    """Time for a request's body to go on, and for its answer to begin; half of it for a client to read on."""
    idle_timeout_seconds: Seconds = 600.0
    """Time for which a connection between requests, or an answer that has begun, may be silent."""
    exchange_seconds: Seconds = 86400.0
    """Longest time for one request and its whole answer, WebSockets too."""
    response_bytes: Count = 1 << 40
    """Bytes of one response; a longer one is cut."""
    connections_per_session: Count = 256
    """Open connections of one session in one worker: with N workers a session may have N times as many."""
    denials_per_connection: Count = 20
    """Denials after which a connection is closed."""
    denied_leaves_per_minute: Annotated[int, msgspec.Meta(ge=0)] = 20
    """Certificates made per session to speak a denial inside TLS; beyond, denials are spoken at CONNECT."""


class EnvSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="env"):
    """A secret in an environment variable of the keeper (or, in `<variable>_FILE`, the path of a file)."""

    variable: Annotated[str, ENV_NAME]


class FileSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="file"):
    """A secret in a file that only the keeper can read; one final newline is dropped."""

    path: str


class CommandSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="command"):
    """A secret printed by a command that the minter runs without a shell."""

    argv: tuple[str, ...]
    timeout_seconds: Seconds = 10.0


type SourceSpec = EnvSource | FileSource | CommandSource


class SessionSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"from_": "from"}):
    """A session that exists as long as the file names it."""

    policy: str
    """Name of its policy."""
    credentials: tuple[str, ...] = ()
    """Names of the credentials that it may use."""
    from_: Network | None = None
    """The one network that it comes from, as CIDR."""
    owner: str = "default"
    """Whose budget it draws from."""


class _Known(msgspec.Struct, frozen=True, kw_only=True):
    """What supervisor, keeper and gate all know; `FileForm` documents each field as it is written."""

    state_dir: str
    audit: AuditSettings = AuditSettings()
    resolver: ResolverSettings = ResolverSettings()
    deny_cidrs: tuple[Network, ...] = ()
    upstream: UpstreamSettings = UpstreamSettings()
    limits: Limits = Limits()
    policies: dict[str, PolicySpec] = {}
    credentials: dict[str, CredentialSpec] = {}
    sessions: dict[str, SessionSpec] = {}
    hash: str = ""
    """SHA-256 of all settings, in hex."""


class GateSettings(_Known, frozen=True, kw_only=True):
    """What a gate worker knows: no source of any secret."""

    listen: ListenSettings = ListenSettings()
    workers: int = 0
    dns: DnsSettings = DnsSettings()


class KeeperSettings(_Known, frozen=True, kw_only=True):
    """What the keeper knows."""

    sources: dict[str, SourceSpec] = {}
    """Where each credential's secret comes from, by the credential's name."""


# Not a GateSettings with more in it: what has sources must not pass for what has none (invariant 5).
class Settings(_Known, frozen=True, kw_only=True):
    """The whole configuration, checked. Made by `load` only."""

    listen: ListenSettings = ListenSettings()
    workers: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 0
    dns: DnsSettings = DnsSettings()
    wall: WallSettings = WallSettings()
    sources: dict[str, SourceSpec] = {}

    def for_gate(self) -> GateSettings:
        """Return what a worker may know."""
        return self._part(GateSettings)

    def for_keeper(self) -> KeeperSettings:
        """Return what the keeper needs."""
        return self._part(KeeperSettings)

    def keeper_hash(self) -> str:
        """Return the SHA-256, in hex, of `for_keeper()`.

        Two halves that run apart must have this in common. In the rest, `workers`, `listen`, `dns` and `wall`, each may
        have values of its own, by a flag or by its environment; `hash` covers that as well. Where a rule stands is no
        part of it: the two may have the file at other places.
        """
        known = msgspec.structs.replace(self.for_keeper(), hash="", policies=_without_origins(self.policies))
        return hashlib.sha256(msgspec.msgpack.encode(known, order="deterministic")).hexdigest()

    def _part[T: _Known](self, kind: type[T]) -> T:
        return kind(**{name: getattr(self, name) for name in kind.__struct_fields__})


def _without_origins(policies: Mapping[str, PolicySpec]) -> dict[str, PolicySpec]:
    def bare(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
        return tuple(msgspec.structs.replace(rule, origin="") for rule in rules)

    replace = msgspec.structs.replace
    return {name: replace(one, allow=bare(one.allow), deny=bare(one.deny)) for name, one in policies.items()}


_encoder = msgspec.msgpack.Encoder()


def encode_gate(settings: GateSettings) -> bytes:
    """Return the settings as MessagePack."""
    return _encoder.encode(settings)


def decode_gate(data: bytes) -> GateSettings:
    """Return the settings in `data`; raise `msgspec.DecodeError` for anything else."""
    return msgspec.msgpack.decode(data, type=GateSettings)


def encode_keeper(settings: KeeperSettings) -> bytes:
    """Return the settings as MessagePack."""
    return _encoder.encode(settings)


def decode_keeper(data: bytes) -> KeeperSettings:
    """Return the settings in `data`; raise `msgspec.DecodeError` for anything else."""
    return msgspec.msgpack.decode(data, type=KeeperSettings)
