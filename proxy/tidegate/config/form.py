"""What may stand in `tidegate.yaml`: policies, credentials and sessions in the form people write.

The settings of `model` are their own form. The text under each field is its reference page, and the
field's type is what the reader, the JSON Schema and the environment's names are made from.
"""

from typing import Annotated, ClassVar, Literal

import msgspec

from tidegate.config.model import (
    AuditSettings,
    DnsSettings,
    Limits,
    ListenSettings,
    Network,
    ResolverSettings,
    Seconds,
    SessionSpec,
    UpstreamSettings,
    WallSettings,
)
from tidegate.config.shapes import ENV_NAME, HEADER, HOST, METHOD, NAME, ONE_HOST, PATH, TIME
from tidegate.policy.names import HostName, HostPattern
from tidegate.policy.paths import PathGlob

__all__ = [
    "BasicForm",
    "BudgetForm",
    "BudgetsForm",
    "CommandForm",
    "CredentialForm",
    "FileForm",
    "LockForm",
    "LockedHostForm",
    "PlaceForm",
    "PlaceholderForm",
    "PolicyForm",
    "PresetForm",
    "RuleForm",
    "RuleLimitsForm",
    "ScopeForm",
    "SourceForm",
    "UseForm",
]

type Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
type Method = Annotated[str, METHOD]
type PathPattern = Annotated[PathGlob, PATH]
type Bound = Annotated[int, msgspec.Meta(ge=1)] | None


class RuleLimitsForm(msgspec.Struct, frozen=True):
    """Bounds on what passes by one rule, counted per session."""

    requests_per_minute: Bound = None
    """Requests in any minute."""
    upload_bytes_per_hour: Bound = None
    """Bytes sent in any hour: targets, headers and bodies."""
    request_body_bytes: Bound = None
    """Bytes of one request body."""


class RuleForm(msgspec.Struct, frozen=True):
    """One destination, and what may be done there. In `deny` the same form forbids, and always wins."""

    host: Annotated[HostPattern, HOST]
    """Exact name, `*.suffix` (any depth below, never the suffix itself), or an address together with `addresses`."""
    protocol: Literal["https", "http", "tcp"] | None = None
    """`https` (without: this) is inspected, `http` plain, `tcp` opaque, with `ports`; in `deny`, without: all."""
    ports: tuple[Port, ...] = ()
    """Ports; without: 443 for https, 80 for http; in `deny`, without: all."""
    methods: tuple[Method, ...] | None = None
    """HTTP methods; without: all but CONNECT and TRACE. Nothing allows CONNECT."""
    paths: tuple[PathPattern, ...] | None = None
    """Path patterns: `*` is one segment or a part of one, `**` any number of segments; without: every path."""
    credential: str | None = None
    """Name of the credential that this rule lets out; its own `for` must match as well."""
    addresses: tuple[Network, ...] = ()
    """Networks outside the public internet that the name may resolve to. Never metadata, never the gate."""
    tls: Literal["inspect", "unsafe_passthrough"] = "inspect"
    """`unsafe_passthrough` passes TLS unread: exact host, no credential, an upload budget."""
    strip: tuple[Annotated[str, HEADER], ...] = ()
    """Request headers that are dropped before anything else looks at them."""
    websocket: bool = False
    """Whether a WebSocket may be opened."""
    limits: RuleLimitsForm = RuleLimitsForm()
    """Bounds on what passes by this rule."""
    unsafe_wildcard: bool = False
    """Allow a wildcard below which strangers can have names of their own."""
    line_: int = 0
    key_: str = ""


class UseForm(msgspec.Struct, frozen=True):
    """A preset with what it needs to know."""

    preset: str
    """Name of a file in allowlists/."""
    tenant: dict[str, tuple[str, ...]] = {}
    """Your account, organisation, bucket …, where the service is shared with strangers: one, or a list."""
    credential: str | None = None
    """Credential for the hosts in its `for`; without: the one credential of the file that is for such a host."""
    addresses: tuple[Network, ...] = ()
    """As a rule's `addresses`, for every rule of the preset: a mirror inside your network."""
    line_: int = 0
    key_: str = ""


class BudgetForm(msgspec.Struct, frozen=True):
    """What may be used up before everything is denied with `budget`."""

    requests_per_minute: Bound = None
    """Requests in any minute."""
    upload_bytes_per_hour: Bound = None
    """Bytes sent in any hour."""
    distinct_names_per_hour: Bound = None
    """Different names asked for in any hour, by any way in."""
    log_bytes_per_hour: Bound = None
    """Bytes of audit log caused in any hour."""
    sessions: Bound = None
    """Sessions at the same time; of a policy or an owner, since a session has none of its own."""


class BudgetsForm(msgspec.Struct, frozen=True):
    """Budgets at three levels; a new session does not refill the upper two."""

    session: BudgetForm = BudgetForm()
    """Of each session, with the tool calls made in it."""
    policy: BudgetForm = BudgetForm()
    """Of all sessions of the policy."""
    owner: BudgetForm = BudgetForm()
    """Of all sessions of one owner."""


class PolicyForm(msgspec.Struct, frozen=True):
    """What may leave. Nothing else does."""

    BEST_EFFORT: ClassVar[bool] = True

    use: tuple[str | UseForm, ...] = ()
    """Presets from allowlists/: a name, or `{preset: …, tenant: {…}, addresses: […]}`."""
    allow: tuple[RuleForm, ...] = ()
    """Rules that allow."""
    deny: tuple[RuleForm, ...] = ()
    """Rules that deny; they win over every rule that allows."""
    limits: RuleLimitsForm = RuleLimitsForm()
    """Limits of every rule that gives none of its own."""
    budgets: BudgetsForm = BudgetsForm()
    """What may be used up."""
    placeholders: Literal["inert", "strict"] = "inert"
    """A placeholder in a body: text like any other, or (`strict`) refused."""
    unsafe_observe_until: Annotated[float, TIME] | None = None
    """Until then, at most 24 hours ahead, what would be denied passes and is marked."""
    line_: int = 0
    key_: str = ""


class CommandForm(msgspec.Struct, frozen=True):
    """A command that prints the secret."""

    argv: tuple[str, ...]
    """Program and arguments; no shell."""
    timeout_seconds: Seconds = 10.0
    """Longest time for one call."""


class SourceForm(msgspec.Struct, frozen=True):
    """Where the secret comes from: exactly one of these."""

    env: Annotated[str, ENV_NAME] | None = None
    """Environment variable of the keeper; with `_FILE` added, one that holds a file's path."""
    file: str | None = None
    """File that only the keeper can read."""
    command: tuple[str, ...] | CommandForm | None = None
    """Program and arguments that print it, or `{argv: […], timeout_seconds: 10}`."""


class ScopeForm(msgspec.Struct, frozen=True):
    """One destination that a credential may go to; never wider than the rules that name the credential."""

    host: Annotated[HostName, NAME] | None = None
    """Exact name."""
    methods: tuple[Method, ...] | None = None
    """HTTP methods; without: all but CONNECT and TRACE."""
    paths: tuple[PathPattern, ...] | None = None
    """Path patterns; without: every path."""
    preset: str | None = None
    """In place of the three: wherever this preset takes a credential."""
    tenant: dict[str, tuple[str, ...]] = {}
    """Tenant of that preset."""
    line_: int = 0
    key_: str = ""


class BasicForm(msgspec.Struct, frozen=True):
    """HTTP Basic authentication; `{secret}` stands for the secret in one of the two."""

    user: str = ""
    """User name."""
    password: str | None = None
    """Password; without: the secret, unless the user name is it."""


class PlaceForm(msgspec.Struct, frozen=True):
    """The one place of a request where the secret is put: exactly one of `header`, `basic`, `query`."""

    header: str | None = None
    """Header name."""
    format: str = "{secret}"
    """Value of that header, such as `Bearer {secret}`."""
    basic: BasicForm | None = None
    """Authorization: Basic."""
    query: str | None = None
    """Name of a query parameter."""


class PlaceholderForm(msgspec.Struct, frozen=True):
    """What the sandbox holds in the secret's stead."""

    shape: str = "generic"
    """Form of the stand-in: that of the real thing, so that clients take it."""
    env: Annotated[str, ENV_NAME] | None = None
    """Variable of the sandbox that carries it."""


class CredentialForm(msgspec.Struct, frozen=True):
    """A secret that the sandbox never holds."""

    source: SourceForm
    """Where it comes from."""
    for_: tuple[ScopeForm, ...] = msgspec.field(name="for")
    """Where it may go; a rule with this `credential` must match as well."""
    place: PlaceForm
    """Where in the request it stands."""
    placeholder: PlaceholderForm = PlaceholderForm()
    """What the sandbox holds in its stead."""
    ttl_seconds: Annotated[int, msgspec.Meta(ge=10, le=86400)] = 900
    """Longest life of one lease in the gate."""
    foreign: Literal["refuse", "replace"] = "refuse"
    """What happens to a value in the place that is not our placeholder."""
    unsafe_short_secret: bool = False
    """Take a secret weaker than 80 bits, which the scrubber may find in innocent text."""
    line_: int = 0
    key_: str = ""


class FileForm(msgspec.Struct, frozen=True):
    """The whole of `tidegate.yaml`."""

    BEST_EFFORT: ClassVar[bool] = True

    version: Literal[1]
    """Version of this form."""
    state_dir: str | None = None
    """Folder of sockets, keys and logs; without: /var/lib/tidegate, or $XDG_STATE_HOME/tidegate when not root."""
    listen: ListenSettings = ListenSettings()
    """Where sandboxes reach the gate."""
    workers: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 0
    """Gate processes; 0: one a core."""
    audit: AuditSettings = AuditSettings()
    """The audit log."""
    resolver: ResolverSettings = ResolverSettings()
    """How the gate looks names up."""
    dns: DnsSettings = DnsSettings()
    """What the sandbox's DNS says."""
    wall: WallSettings = WallSettings()
    """The rules around the sandboxes' links."""
    deny_cidrs: tuple[Network, ...] = ()
    """The site's own networks, never reached unless a rule's `addresses` names one."""
    upstream: UpstreamSettings = UpstreamSettings()
    """The way from the gate to a destination."""
    limits: Limits = Limits()
    """Bounds on what one client can make the gate hold."""
    registries: dict[str, str] = {}
    """URL of a package index by client (`npm: "https://…"`), in place of the client's own configuration."""
    policies: dict[str, str | PolicyForm] = {}
    """What may leave, by name; a text is the path of a file that holds the policy."""
    credentials: dict[str, CredentialForm] = {}
    """Secrets that the sandbox never holds, by name."""
    sessions: dict[str, SessionSpec] = {}
    """Sessions that exist as long as the file names them."""


class PresetForm(msgspec.Struct, frozen=True):
    """A file in allowlists/."""

    id: str
    """Name of the file, without its ending."""
    title: str
    """What it is for, in one line."""
    source: str
    """Page of the service from which the rules were taken."""
    reviewed: str
    """Date of the last review, ISO 8601."""
    risks: tuple[str, ...]
    """What can still leak or be done by these rules."""
    readers_of_requests: str
    """Who sees what is sent."""
    tenant: dict[str, str] = {}
    """Name -> what the user must give, where the host serves strangers as well."""
    auth_headers: tuple[Annotated[str, HEADER], ...] = ()
    """Headers by which the service takes a key: dropped where a rule takes a credential, but for that one's place."""
    rules: tuple[RuleForm, ...] = ()
    """Rules; `{name}` in hosts and paths is the tenant. `credential: "{credential}"` is the one of `use`."""
    discover: Literal["pip", "npm", "apt", "cargo", "go", "maven"] | None = None
    """Client whose configured index `tidegate policy lock` looks up; then there are no `rules`."""


class LockedHostForm(msgspec.Struct, frozen=True):
    """One host that `policy lock` found."""

    host: Annotated[HostPattern, ONE_HOST]
    """Name, or an address."""
    protocol: Literal["https", "http"] = "https"
    """Scheme of the index."""
    port: Port = 443
    """Port of the index."""
    found: str = ""
    """Where it was found."""
    line_: int = 0
    key_: str = ""


class LockForm(msgspec.Struct, frozen=True):
    """The whole of `tidegate.lock`, written by `tidegate policy lock` and by nobody else."""

    version: Literal[1]
    """Version of this form."""
    hosts: dict[str, tuple[LockedHostForm, ...]] = {}
    """Client -> hosts, reachable by GET and HEAD."""
