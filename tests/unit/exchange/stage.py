"""A gate without an engine: a keeper and a resolver in memory at their seams, a real log, a clock to step."""

import asyncio
import base64
import dataclasses
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path

import msgspec

from tests.lab.clock import SteppedClock
from tests.unit.audit.making import blocks
from tidegate.audit.recorder import Recorder
from tidegate.audit.writer import ChainWriter
from tidegate.config.model import AuditSettings, GateSettings, Limits, ResolverSettings, Settings
from tidegate.credentials.spec import CredentialSpec, Place, Scope
from tidegate.exchange.channel import Channel
from tidegate.exchange.effects import Forward, Relay
from tidegate.exchange.exchange import Exchange
from tidegate.exchange.gate import Gate, prepare
from tidegate.exchange.head import HeadLimits, RequestHead, ResponseHead, parse_request_head, parse_response_head
from tidegate.exchange.reply import Denial
from tidegate.keeper.protocol import Holding, LeaseGrant, LiveSecret, SessionGrant
from tidegate.policy.names import HostName, parse_pattern
from tidegate.policy.reasons import Reason
from tidegate.policy.rules import PolicySpec, Rule
from tidegate.resolve.resolver import Answer
from tidegate.secret import Secret
from tidegate.session.identity import SessionId

SECRET = b"S3cretThatIsLive/0123456789abcdef"
PLACEHOLDER = "tg_71de9a7eABCDEFGHIJKLMNOPQRSTUV"
SESSION = SessionId("alice00000000000")
OWN = ("10.9.9.1", 8080)

CREDENTIAL = CredentialSpec(
    "key", (Scope(HostName("api.test")),), Place("header", header="Authorization", format="Bearer {secret}")
)


def rule(id: str, host: str, **more: object) -> Rule:
    return Rule(id, parse_pattern(host), **more)  # type: ignore[arg-type]


RULES = (
    rule("api", "api.test", credential="key"),
    rule("files", "files.test", methods=("GET", "PUT")),
    rule("plain", "plain.test", protocol="http"),
    rule("raw", "raw.test", protocol="tcp", ports=(9000,)),
    rule("sealed", "sealed.test", tls="unsafe_passthrough"),
    rule("inner", "inner.test", addresses=("10.1.0.0/16",)),
    rule("chat", "chat.test", websocket=True),
)


def grant(**changes: object) -> SessionGrant:
    """What the keeper says of alice: one credential, its secret live."""
    made = SessionGrant(
        id=SESSION,
        owner="team",
        policy="p",
        source=None,
        expires_in=3600.0,
        frozen=False,
        holdings=(Holding("key", PLACEHOLDER),),
        secrets=(LiveSecret("lease-0", "key", Secret(SECRET), PLACEHOLDER),),
        epoch=0,
    )
    return msgspec.structs.replace(made, **changes)


@dataclasses.dataclass
class FakeKeeper:
    """Answers from attributes, and keeps what it was asked."""

    opens: SessionGrant | Reason = dataclasses.field(default_factory=grant)
    leases: LeaseGrant | Reason = dataclasses.field(
        default_factory=lambda: LeaseGrant("lease-1", "key", Secret(SECRET), 600.0)
    )
    purse: int | Reason | None = None
    numbers: list[str] | Reason = dataclasses.field(default_factory=list)
    away: float = 0.0
    asked: list[tuple[object, ...]] = dataclasses.field(default_factory=list)

    def down_seconds(self) -> float:
        return self.away

    async def open_session(self, *, token: str | None, source: str, listener: str) -> SessionGrant | Reason:
        self.asked.append(("open", token, source, listener))
        return self.opens

    async def lease(self, session: SessionId, credential: str) -> LeaseGrant | Reason:
        self.asked.append(("lease", session, credential))
        await asyncio.sleep(0)
        return self.leases

    async def number(self, session: SessionId, name: HostName) -> int | Reason:
        self.asked.append(("number", session, name))
        if isinstance(self.numbers, Reason):
            return self.numbers
        if name not in self.numbers:
            self.numbers.append(name)
        return self.numbers.index(name) + 1

    async def numbered(self, session: SessionId, number: int) -> str | Reason:
        self.asked.append(("numbered", session, number))
        if isinstance(self.numbers, Reason):
            return self.numbers
        return self.numbers[number - 1] if 0 < number <= len(self.numbers) else ""

    async def draw(self, session: SessionId, kind: str, key: str, amount: int, limit: int) -> int | Reason:
        del session, limit
        self.asked.append(("draw", kind, key, amount))
        if isinstance(self.purse, Reason):
            return self.purse
        if self.purse is None:
            return amount
        paid = min(self.purse, amount)
        self.purse -= paid
        return paid

    def forget(self, session: SessionId) -> None:
        self.asked.append(("forget", session))

    def count(self, act: str) -> int:
        return sum(ask[0] == act for ask in self.asked)


class FakeResolver:
    """Names to addresses; what has no answer fails."""

    def __init__(self, **zone: str) -> None:
        self.zone = {"api.test": "93.184.216.34", **zone}
        self.asked: list[str] = []

    async def lookup(self, name: HostName, *, payer: str | None = None) -> Answer | Reason:
        del payer
        self.asked.append(name)
        text = self.zone.get(name, "8.8.4.4" if name.endswith(".test") else "")
        if not text:
            return Reason.DNS_FAILURE
        return Answer(tuple(ip_address(part) for part in text.split()), 60.0)


@dataclasses.dataclass
class Stage:
    """A gate with its seams in reach."""

    gate: Gate
    keeper: FakeKeeper
    resolver: FakeResolver
    clock: SteppedClock
    log: Path

    def channel(self, peer: tuple[str, int] = ("10.0.0.2", 40000)) -> Channel:
        return Channel(self.gate, peer, OWN)

    def records(self, kind: str) -> list[dict[str, object]]:
        return blocks(self.log, kind)

    def phases(self) -> list[tuple[object, ...]]:
        """(type, phase, verdict, reason) of every record that a client caused."""
        found = [line for kind in ("conn", "http", "credential", "incident", "ws") for line in self.records(kind)]
        found.sort(key=lambda line: int(str(line["seq"])))
        return [(line["type"], line["phase"], line["verdict"], line["reason"]) for line in found]


def settings(
    folder: Path, *, rules: Sequence[Rule] = RULES, policy: dict[str, object] | None = None, **limits: int
) -> GateSettings:
    spec = PolicySpec("p", allow=tuple(rules), **(policy or {}))  # type: ignore[arg-type]
    return Settings(
        state_dir=str(folder),
        audit=AuditSettings(dir=str(folder / "audit")),
        resolver=ResolverSettings(servers=("127.0.0.1:1",)),
        limits=Limits(**limits),
        policies={"p": spec},
        credentials={"key": CREDENTIAL},
    ).for_gate()


def stage(
    folder: Path,
    *,
    keeper: FakeKeeper | None = None,
    rules: Sequence[Rule] = RULES,
    policy: dict[str, object] | None = None,
    **limits: int,
) -> Stage:
    """Make a gate over `folder`; `policy` are fields of its one policy."""
    clock, keeper, resolver = SteppedClock(), keeper or FakeKeeper(), FakeResolver()
    prepared = prepare(settings(folder, rules=rules, policy=policy, **limits), frozenset({OWN[0]}), frozenset({OWN[1]}))
    (folder / "audit").mkdir(parents=True)
    writer = ChainWriter(folder / "audit", "gate-1", clock=clock, fsync="never")
    gate = Gate(prepared, keeper=keeper, recorder=Recorder(writer, clock), key=b"k" * 32, clock=clock)
    gate.resolver = resolver  # type: ignore[assignment]
    return Stage(gate, keeper, resolver, clock, folder / "audit")


LIMITS = HeadLimits()


def authorization(token: str = "token") -> str:
    return "Basic " + base64.b64encode(f"s:{token}".encode()).decode()


def head(line: str, *fields: str, token: str | None = None) -> RequestHead:
    """Parse a head from its lines; `token` adds the session's."""
    more = [f"Proxy-Authorization: {authorization(token)}"] if token is not None else []
    made = parse_request_head("\r\n".join([line, *fields, *more]).encode("latin-1"), LIMITS)
    assert isinstance(made, RequestHead), made
    return made


def connect(authority: str, *fields: str, token: str | None = "token") -> RequestHead:
    return head(f"CONNECT {authority} HTTP/1.1", f"Host: {authority}", *fields, token=token)


def reply(line: str, *fields: str, method: str = "GET") -> ResponseHead:
    return parse_response_head("\r\n".join([line, *fields]).encode("latin-1"), method=method, limits=LIMITS)


async def tunnel(stage: Stage, host: str = "api.test", port: int = 443, *, sni: str | None = None) -> Channel:
    """A channel in an admitted TLS tunnel."""
    channel = stage.channel()
    await channel.admit(connect(f"{host}:{port}"))
    channel.hello(sni or host)
    return channel


async def judged(channel: Channel, request: RequestHead) -> Exchange:
    exchange = Exchange(channel, request)
    await exchange.judge()
    return exchange


BEARER = f"Authorization: Bearer {PLACEHOLDER}"
GET = "GET /v1/items?q=1 HTTP/1.1"
UPGRADE = ("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Extensions: permessage-deflate")


def forwarded(exchange: Exchange) -> Forward:
    assert isinstance(exchange.effect, Forward), exchange.effect
    return exchange.effect


def reason_of(exchange: Exchange) -> Reason:
    assert isinstance(exchange.effect, Denial), exchange.effect
    return exchange.effect.reason


def relayed(exchange: Exchange, line: str = "HTTP/1.1 200 OK", *fields: str) -> Relay:
    exchange.on_response(reply(line, *fields, method=exchange.head.method))
    exchange.judge_response()
    assert isinstance(exchange.response_effect, Relay), exchange.response_effect
    return exchange.response_effect


async def credentialed(made: Stage, line: str = GET, *fields: str) -> Exchange:
    return await judged(await tunnel(made), head(line, "Host: api.test", BEARER, *fields))


def written(exchange: Exchange, method: str) -> int:
    """The bytes of the head as HTTP/1.1 writes it."""
    effect = exchange.effect
    assert isinstance(effect, Forward)
    lines = [b"%b %b HTTP/1.1" % (method.encode(), effect.target), b"Host: " + effect.authority.encode()]
    return len(b"\r\n".join([*lines, *(b"%b: %b" % field for field in effect.headers), b"", b""]))


async def paid(exchange: Exchange, data: bytes) -> Reason | None:
    """Send a piece of the body as the engine does."""
    refusal = exchange.upload(data)
    return await exchange.pay(len(data)) if refusal is None and exchange.metered else refusal
