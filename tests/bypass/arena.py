"""Where an attack is tried: one real gate, servers that count, and the log of what was decided.

    arena = arena_fixture()

    def test_x(arena: Arena) -> None:
        with arena.quiet(), arena.tunnel(arena.one) as raw:
            reply = raw.request("GET", "/", host="evil.test")
            story = arena.story(raw)
        story.denied(reply, Reason.AUTHORITY_MISMATCH)

`quiet` proves that nothing arrived anywhere. `story` closes the client and returns its records; each decision in
it has exactly one end (invariant 6), whatever the test was about.
"""

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.lab.certs import Authority
from tests.lab.client import RawClient, RawReply, connect, proxy_header, tunnel
from tests.lab.dns import DnsServer, addresses, dns_server
from tests.lab.gate import Gate, Session, configuration, gate, rule
from tests.lab.upstream import Upstream, upstream
from tidegate.exchange.channel import verdict_of
from tidegate.policy.reasons import Reason

__all__ = ["EVIL", "ONE", "PLAIN", "SCOPED", "TWO", "WILD", "Arena", "Story", "arena_fixture", "fields", "make_arena"]

ONE = "one.allowed.test"
TWO = "two.allowed.test"
PLAIN = "plain.allowed.test"
SCOPED = "scoped.allowed.test"
WILD = "wild.allowed.test"
EVIL = "evil.test"
DENIED = "denied.wild.allowed.test"
"""Below the wildcard, and in the deny list."""

Line = dict[str, Any]
KEY = "sk-arena-5f0c9d7e2b6a4183-long-enough-to-be-a-secret"
_SECONDS = 10.0


def fields(reply: RawReply) -> dict[str, list[str]]:
    """Return the header fields that an `/echo` saw, by lower-case name."""
    found: dict[str, list[str]] = {}
    for name, value in reply.json()["headers"]:
        found.setdefault(name.lower(), []).append(value)
    return found


@dataclass
class Story:
    """The records of one client connection: (decision, end) of each of its conns and requests."""

    conns: list[tuple[Line, Line]]
    requests: list[tuple[Line, Line]]

    def denied(self, reply: RawReply, reason: Reason, *, status: int | None = None) -> None:
        """Assert what the client was told and what the log says of that very flow."""
        assert reply.status == (status or reason.status or 403), reply
        assert reply.reason == reason.public_code
        assert f'details="{reason.public_code}"' in (reply.header("proxy-status") or "")
        flow = reply.json()["request_id"]
        found = [pair for pair in self.conns + self.requests if pair[0]["flow"] == flow]
        assert len(found) == 1, (flow, self)
        for line in found[0]:
            assert line["reason"] == reason.code
            assert line["verdict"] == verdict_of(reason)

    def silently(self, reason: Reason) -> None:
        """Assert a refusal that no reply told of."""
        ends = [line for _, line in self.conns + self.requests if line["reason"] == reason.code]
        assert ends, self
        assert all(line["verdict"] == verdict_of(reason) for line in ends)

    def allowed(self, count: int = 1) -> None:
        """Assert that so many requests were let through to their end."""
        passed = [end for decision, end in self.requests if decision["verdict"] == end["verdict"] == "allow"]
        assert len(passed) == count, self


@dataclass
class _Log:
    """All audit lines, read piece by piece."""

    folder: Path
    lines: list[Line] = field(default_factory=list)
    read: dict[Path, int] = field(default_factory=dict)

    def more(self) -> list[Line]:
        for path in sorted(self.folder.glob("*/*.jsonl")):
            with path.open("rb") as file:
                file.seek(self.read.get(path, 0))
                whole, newline, _ = file.read().rpartition(b"\n")
            self.read[path] = self.read.get(path, 0) + len(whole) + len(newline)
            self.lines += [json.loads(line) for line in whole.splitlines()]
        return self.lines


@dataclass
class Arena:
    gate: Gate
    session: Session
    one: Upstream
    two: Upstream
    plain: Upstream
    dns: DnsServer
    log: _Log
    paces: dict[str, list[float]] = field(default_factory=dict)

    @property
    def ca(self) -> Path:
        return self.gate.state / "ca.pem"

    @property
    def proof(self) -> bytes:
        """The Proxy-Authorization line."""
        return proxy_header(self.session.token)

    @contextlib.contextmanager
    def tunnel(self, server: Upstream, name: str | None = None, **more: Any) -> Iterator[RawClient]:
        """Open a tunnel to a server's port by its first name, or by another one."""
        token = more.pop("token", self.session.token)
        self._pace(name or server.names[0])
        since = len(self.log.more())
        with tunnel(self.gate, name or server.names[0], server.port, token=token, ca=self.ca, **more) as raw:
            raw.since = since
            yield raw

    @contextlib.contextmanager
    def connect(self) -> Iterator[RawClient]:
        """Open a bare connection to the proxy port."""
        self._pace("")
        since = len(self.log.more())
        with connect(self.gate) as raw:
            raw.since = since
            yield raw

    def last_story(self) -> Story:
        """Return the story of the connection that the log has last."""
        conns = self.gate.wait_audit(type="conn", phase="end")
        self.log.more()
        story, missing = _story(self.log.lines, conns[-1]["conn"]["client"])
        if story is None:
            raise AssertionError(missing)
        return story

    def _pace(self, key: str) -> None:
        """Keep below the rate from which the log counts repeats instead of writing them (20 a second)."""
        recent = self.paces.setdefault(key, [])
        if len(recent) >= 16:
            time.sleep(max(0.0, recent[-16] + 1.05 - time.monotonic()))
        recent.append(time.monotonic())

    def ask(self, raw: RawClient, target: str, *, port: int | None = None, host: str | None = None) -> RawReply:
        """Send a CONNECT and read its answer."""
        authority = target if port is None else f"{target}:{port}"
        raw.send(
            b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n%b\r\n"
            % (authority.encode("latin-1"), (host or authority).encode("latin-1"), self.proof)
        )
        return raw.reply(method="CONNECT")

    @contextlib.contextmanager
    def quiet(self, *names: str) -> Iterator[None]:
        """Assert that no server sees a connection or a byte, and that none of `names` is looked up."""
        servers = (self.one, self.two, self.plain)

        def seen() -> list[tuple[int, int, int]]:
            # An open HTTP/2 connection goes on talking by itself (acknowledgements): there, requests count.
            return [(s.connections, len(s.requests), 0 if s is self.two else s.bytes_in) for s in servers]

        before = seen()
        asked = [self.dns.count(name) for name in names]
        yield
        assert seen() == before
        assert [self.dns.count(name) for name in names] == asked

    def story(self, raw: RawClient, *, port: int | None = None) -> Story:
        """Close the client, wait until all that it caused has ended, and return it."""
        port = port or raw.sock.getsockname()[1]
        raw.close()
        deadline = time.monotonic() + _SECONDS
        while True:
            # What the log had before this client came is of another one, that had the same port.
            story, missing = _story(self.log.more()[raw.since :], f"127.0.0.1:{port}")
            if story is not None:
                return story
            if time.monotonic() > deadline:
                raise AssertionError(f"the log is not whole: {missing}\n{self.gate.stderr[-1500:]}")
            # The log is a file: nothing else can be waited for.
            time.sleep(0.005)


def _story(lines: list[Line], client: str) -> tuple[Story | None, str]:
    conns = [line for line in lines if line["type"] == "conn" and line["conn"]["client"] == client]
    flows = {line["flow"] for line in conns}
    asked = [line for line in lines if line["type"] == "http" and line["parent"] in flows]
    requests = [line for line in asked if line["phase"] != "event"]
    made: list[list[tuple[Line, Line]]] = []
    for found in (conns, requests):
        pairs = []
        for flow in dict.fromkeys(line["flow"] for line in found):
            phases = [line["phase"] for line in found if line["flow"] == flow]
            if phases == ["decision"]:
                return None, f"{flow} has no end"
            assert phases == ["decision", "end"], (phases, [line for line in found if line["flow"] == flow])
            decision, end = (line for line in found if line["flow"] == flow)
            pairs.append((decision, end))
        made.append(pairs)
    if not made[0]:
        return None, f"no record of the connection from {client}"
    return Story(*made), ""


@contextlib.contextmanager
def make_arena(
    *,
    names: Sequence[str] = (),
    prefix: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    **config: Any,
) -> Iterator[Arena]:
    """Run everything; `config` are further top-level keys of the gate's configuration.

    `names` are more names that the servers `one` and `plain` have, allowed as `*.suffix` or whole.
    """
    here = addresses("127.0.0.1")
    known = {name: here for name in (ONE, TWO, PLAIN, SCOPED, EVIL, f"*.{WILD}", f"*.{EVIL}", *names)}
    with (
        Authority() as ca,
        dns_server(known) as dns,
        # Every server would take any name: nothing but the gate keeps evil.test out.
        upstream(ca=ca, names=(ONE, SCOPED, f"*.{WILD}", EVIL, *names)) as one,
        upstream(ca=ca, names=(TWO, EVIL), alpn=("h2", "http/1.1")) as two,
        upstream(names=(PLAIN,)) as plain,
    ):
        allow = [
            rule(ONE, port=one.port),
            rule(TWO, port=two.port),
            rule(PLAIN, port=plain.port, protocol="http"),
            rule(SCOPED, port=one.port, paths=["/repos/acme/**", "/header", "/echo"], methods=["GET", "HEAD"]),
            rule(f"*.{WILD}", port=one.port),
            rule(f"*.{WILD}", port=plain.port, protocol="http"),
            rule("keyed.wild.allowed.test", port=one.port, credential="key"),
            *(rule(name, port=one.port) for name in names),
            *(rule(name, port=plain.port, protocol="http") for name in names),
        ]
        whole = configuration(
            allow=allow,
            deny=[{"host": DENIED, "ports": [one.port]}],
            dns=dns,
            ca=ca,
            credentials={
                "key": {
                    "source": {"env": "ARENA_KEY"},
                    "for": [{"host": "keyed.wild.allowed.test"}],
                    "place": {"header": "Authorization", "format": "Bearer {secret}"},
                    "placeholder": {"shape": "generic", "env": "KEY"},
                }
            },
            limits={"denied_leaves_per_minute": 10_000, **config.pop("limits", {})},
            **config,
        )
        with gate(whole, env={"ARENA_KEY": KEY, **(env or {})}, prefix=prefix) as running:
            session = running.session(credentials=["key"])
            yield Arena(running, session, one, two, plain, dns, _Log(running.state / "audit"))


def arena_fixture(**config: Any) -> Callable[..., Any]:
    """Return a fixture, one arena for a module."""

    @pytest.fixture(scope="module", name="arena")
    def arena() -> Iterator[Arena]:
        with make_arena(**config) as made:
            yield made

    return arena


def by_id(table: Mapping[str, Any]) -> pytest.MarkDecorator:
    """Parametrise `case` by a table whose keys are the ids."""
    return pytest.mark.parametrize("case", table.values(), ids=table.keys())
