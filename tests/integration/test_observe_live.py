"""`unsafe_observe_until` on a real gate: what would be denied passes, marked, and never more than a little of it.

In a world of namespaces, since what passes by observe passes by no rule, whose `addresses` would let it reach the
lab on loopback: here the servers stand at public addresses.
"""

import contextlib
import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.lab.certs import Authority
from tests.lab.client import Refused
from tests.lab.dns import DnsServer, addresses, dns_server
from tests.lab.gate import Gate, configuration, gate
from tests.lab.upstream import Upstream, upstream
from tests.lab.visitor import Visitor, bearer, place
from tests.lab.wallclock import WallClock, wall_clock
from tests.lab.world import GATE, inlet, why_no_world, world

pytestmark = pytest.mark.skipif(why_no_world() is not None, reason=f"no network namespaces: {why_no_world()}")

PUBLIC, METADATA, PRIVATE = "93.184.216.34", "169.254.169.254", "10.99.0.7"
API, KEYED, RAW, SEALED = "api.allowed.test", "keyed.allowed.test", "raw.allowed.test", "sealed.allowed.test"
OTHER, DENIED, INSIDE = "other.test", "denied.test", "inside.test"
SECRET = "sk-Observe-3xR7vQ2mZ9pL5tY8wK1nB4cD6fG0hJ"
MILLION = 1_000_000


@dataclass
class Scene:
    gate: Gate
    server: Upstream
    plain: Upstream
    raw: Upstream
    metadata: Upstream
    private: Upstream
    dns: DnsServer
    clock: WallClock

    def visitor(self, policy: str = "watch") -> Visitor:
        return Visitor(self.gate, self.gate.session(policy=policy, credentials=["key"]))


def until(seconds: float) -> str:
    at = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)
    return at.isoformat(timespec="seconds").replace("+00:00", "Z")


ALLOW: list[dict[str, Any]] = [
    {"host": API, "methods": ["GET"], "paths": ["/echo", "/redirect", "/bytes/**"]},
    {"host": KEYED, "paths": ["/echo"], "credential": "key"},
    {"host": RAW, "protocol": "tcp", "ports": [9000]},
    {"host": SEALED, "tls": "unsafe_passthrough", "limits": {"upload_bytes_per_hour": 100_000}},
]
DENY = [{"host": DENIED}, {"host": SEALED}]


def settings(dns: DnsServer, ca: Authority) -> dict[str, Any]:
    credential = {
        "source": {"env": "OBSERVE_KEY"},
        "for": [{"host": KEYED, "paths": ["/echo"]}],
        "place": place(),
        "placeholder": {"shape": "generic", "env": "KEY"},
    }
    config = configuration(dns=dns, ca=ca, credentials={"key": credential})
    watch = {"allow": ALLOW, "deny": DENY, "unsafe_observe_until": until(3600)}
    config["policies"] = {name: watch for name in ("watch", "large", "shared")}
    config["policies"]["over"] = {**watch, "unsafe_observe_until": until(-5)}
    config["policies"]["strict"] = {"allow": ALLOW, "deny": DENY}
    return config


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    names = (API, KEYED, RAW, SEALED, OTHER, DENIED, INSIDE)
    known = {name: addresses(PUBLIC) for name in names} | {INSIDE: addresses(PRIVATE)}
    with (
        Authority() as ca,
        world(addresses=[PUBLIC, METADATA, PRIVATE]) as made,
        dns_server(known, address=PUBLIC, port=53, bind=made.bind) as dns,
        upstream(ca=ca, names=names, address=PUBLIC, port=443, bind=made.bind) as server,
        upstream(names=names, address=PUBLIC, port=80, bind=made.bind) as plain,
        upstream(names=names, address=PUBLIC, port=9001, bind=made.bind) as raw,
        upstream(address=METADATA, port=80, bind=made.bind) as metadata,
        upstream(ca=ca, names=names, address=PRIVATE, port=443, bind=made.bind) as private,
        wall_clock() as clock,
        gate(
            settings(dns, ca),
            host=GATE,
            port=8080,
            prefix=made.gate_prefix,
            env={"OBSERVE_KEY": SECRET, **clock.env},
        ) as running,
        inlet(made, GATE, running.port) as (host, port),
    ):
        running.host, running.port = host, port
        server.route("/odd/**", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        yield Scene(running, server, plain, raw, metadata, private, dns, clock)


def marks(visitor: Visitor, kind: str, count: int = 1) -> list[tuple[str, str, str | None, bool, str | None]]:
    """Return (phase, verdict, reason, observed, rule) of a session's decisions and ends of one type."""
    lines = visitor.wait_log(lambda lines: len(lines) == 2 * count, type=kind)
    return [(line["phase"], line["verdict"], line["reason"], line["observed"], line["rule"]) for line in lines]


def seen(reason: str | None, rule: str | None = None) -> list[tuple[str, str, str | None, bool, str | None]]:
    """What `marks` gives for one thing that passed: by observe for a reason, or by a rule."""
    return [(phase, "allow", reason, reason is not None, rule) for phase in ("decision", "end")]


# -- what passes, and how it is marked ------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "method", "target", "connect", "request_"),
    [
        pytest.param(OTHER, "GET", "/echo", "not_in_allowlist", "not_in_allowlist", id="host"),
        pytest.param(DENIED, "GET", "/echo", "not_in_allowlist", "not_in_allowlist", id="deny-list"),
        pytest.param(API, "POST", "/echo", None, "method_not_allowed", id="method"),
        pytest.param(API, "GET", "/status/200", None, "path_not_allowed", id="path"),
        pytest.param(API, "GET", "/odd/x;a=1", None, "ambiguous_path", id="ambiguous-path"),
        pytest.param(API, "GET", "/echo", None, None, id="allowed-anyway"),
    ],
)
def test_what_would_be_denied_passes_with_its_reason_on_every_record(
    scene: Scene, host: str, method: str, target: str, connect: str | None, request_: str | None
) -> None:
    visitor, strict = scene.visitor(), scene.visitor("strict")
    reply = visitor.get(scene.server, target, host=host, method=method)
    assert reply.reason is None
    assert scene.server.requests[-1].target == target
    assert marks(visitor, "http") == seen(request_, None if request_ else "allow[0]")
    assert marks(visitor, "conn") == seen(connect, None if connect else "allow[0]")
    enforced = strict.get(scene.server, target, host=host, method=method)
    assert enforced.reason == request_


def test_a_scheme_that_no_rule_has_passes_marked(scene: Scene) -> None:
    visitor = scene.visitor()
    assert visitor.plain(f"http://{API}/echo", host=API).status == 200
    assert marks(visitor, "http") == seen("scheme_not_allowed")


def test_a_port_that_no_rule_names_passes_marked(scene: Scene) -> None:
    visitor = scene.visitor()
    with visitor.tunnel(scene.raw, API, ca=None, tls=False) as raw:
        assert raw.request("GET", "/echo", host=f"{API}:9001").status == 200
    assert marks(visitor, "conn") == seen("port_not_allowed")


@pytest.mark.parametrize(
    ("target", "passes"),
    [
        pytest.param(f"https://{OTHER}/echo", True, id="another-host"),
        pytest.param(f"http://{API}/echo", True, id="another-scheme"),
        pytest.param(f"http://{METADATA}/latest", False, id="metadata"),
        pytest.param(f"https://{PUBLIC}/", False, id="an-address"),
    ],
)
def test_a_redirect_that_only_observe_lets_through_is_no_denied_redirect(
    scene: Scene, target: str, passes: bool
) -> None:
    visitor = scene.visitor()
    reply = visitor.get(scene.server, f"/redirect?to={target}", host=API)
    if passes:
        assert (reply.status, reply.header("location")) == (302, target)
    else:
        assert (reply.status, reply.reason) == (403, "redirect_denied")


# -- what never passes ----------------------------------------------------------------------------


def test_never_a_credential(scene: Scene) -> None:
    visitor = scene.visitor()
    scene.server.reset()
    token = bearer(visitor.session.placeholder("KEY"))
    assert visitor.get(scene.server, "/echo", host=KEYED, headers=[token]).status == 200
    assert scene.server.requests[-1].header("authorization") == f"Bearer {SECRET}"
    for host, target in ((KEYED, "/status/200"), (OTHER, "/echo"), (API, "/status/200")):
        scene.server.reset()
        reply = visitor.get(scene.server, target, host=host, headers=[token])
        assert (reply.status, reply.reason) == (403, "credential_out_of_scope")
        assert scene.server.bytes_in == 0
    incidents = visitor.wait_log(lambda lines: len(lines) == 3, type="incident", reason="credential_out_of_scope")
    assert [line["incident"]["credential"] for line in incidents] == ["key"] * 3


@pytest.mark.parametrize(
    ("authority", "reason"),
    [
        (f"{METADATA}:80", "metadata"),
        ("metadata.google.internal:80", "metadata"),
        (f"{PUBLIC}:443", "ip_literal"),
        ("127.0.0.1:443", "self_or_gateway"),
        (f"{PRIVATE}:443", "blocked_address"),
    ],
)
def test_never_metadata_nor_an_address(scene: Scene, authority: str, reason: str) -> None:
    visitor = scene.visitor()
    host = authority.rpartition(":")[0]
    assert visitor.connect_to(authority).reason == reason
    assert visitor.plain(f"http://{host}/", host=host).reason == reason
    assert scene.metadata.connections == scene.private.connections == 0


def test_never_a_name_that_stands_for_a_private_address(scene: Scene) -> None:
    visitor = scene.visitor()
    reply = visitor.get(scene.server, host=INSIDE)
    assert (reply.status, reply.reason) == (502, "destination_unavailable")
    assert visitor.wait_log(type="http", phase="end", reason="resolved_blocked")
    assert scene.private.connections == 0


def test_never_tcp(scene: Scene) -> None:
    """A tunnel that passes by observe is read: what is not HTTP in it ends it."""
    visitor = scene.visitor()
    scene.raw.reset()
    with visitor.tunnel(scene.raw, RAW, tls=False) as raw:
        raw.send(b"\x00\x00\x00\x08\x04\xd2\x16\x2f not http\r\n\r\n")
        raw.read_all()
    assert scene.raw.connections == 0
    assert visitor.wait_log(type="conn", phase="end", reason="not_http")


def test_never_a_passthrough(scene: Scene) -> None:
    """The host has a passthrough rule, but is denied: what observe lets through is inspected."""
    visitor = scene.visitor()
    assert visitor.get(scene.server, host=SEALED).status == 200  # under the gate's certificate
    assert marks(visitor, "http") == seen("not_in_allowlist")


# -- how much -------------------------------------------------------------------------------------


def upload(scene: Scene, visitor: Visitor, size: int, **more: Any) -> tuple[int, str | None]:
    reply = visitor.get(scene.server, "/echo", host=OTHER, method="POST", body=bytes(size), **more)
    return reply.status, reply.reason


def test_one_megabyte_in_all(scene: Scene) -> None:
    visitor = scene.visitor("large")
    scene.server.reset()
    assert upload(scene, visitor, 400_000) == (200, None)
    assert upload(scene, visitor, 400_000) == (200, None)
    assert upload(scene, visitor, 400_000) == (403, "not_in_allowlist")
    # What of the third went up until then is spent as well.
    assert upload(scene, visitor, 300_000) == (403, "not_in_allowlist")
    assert [len(request.body) for request in scene.server.requests] == [400_000, 400_000]
    ends = visitor.wait_log(lambda lines: len(lines) == 4, type="http", phase="end")
    assert 800_000 < sum(line["http"]["bytes_up"] for line in ends) <= MILLION
    assert [line["observed"] for line in ends] == [True, True, False, False]
    # What a rule allows is not part of it.
    assert visitor.get(scene.server, host=API).status == 200


def test_a_new_session_does_not_refill_it(scene: Scene) -> None:
    assert upload(scene, scene.visitor("shared"), 900_000) == (200, None)
    assert upload(scene, scene.visitor("shared"), 200_000) == (403, "not_in_allowlist")
    assert upload(scene, scene.visitor(), 1000) == (200, None)  # another policy


def test_chunks_are_cut_at_the_megabyte(scene: Scene) -> None:
    visitor = scene.visitor("shared")
    with visitor.tunnel(scene.server, OTHER) as raw:
        raw.send(f"POST /echo HTTP/1.1\r\nHost: {OTHER}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        with contextlib.suppress(OSError):
            for _ in range(40):
                raw.send(b"4000\r\n" + bytes(0x4000) + b"\r\n")
        reply = raw.reply()
    assert (reply.status, reply.reason) == (403, "not_in_allowlist")


# -- when -----------------------------------------------------------------------------------------


def test_a_time_that_has_passed_enforces(scene: Scene) -> None:
    assert scene.visitor("over").get(scene.server, host=OTHER).reason == "not_in_allowlist"


def test_it_ends_by_itself(scene: Scene) -> None:
    """Last in the file: the clock does not go back."""
    visitor = scene.visitor()
    with visitor.tunnel(scene.server, OTHER) as raw:
        assert raw.request("GET", "/echo", host=OTHER).status == 200
        scene.clock.offset = 3700
        with contextlib.suppress(EOFError, OSError):
            assert raw.request("GET", "/echo", host=OTHER).reason == "not_in_allowlist"
    assert visitor.get(scene.server, host=OTHER).reason == "not_in_allowlist"
    assert visitor.get(scene.server, host=API).status == 200
    assert not [line for line in scene.gate.audit(type="fault") if line["fault"]["name"] != "clock_step"]


def test_it_is_shown_as_a_danger(scene: Scene) -> None:
    assert "unsafe_observe_until" in scene.gate.stderr
    with pytest.raises(Refused), scene.visitor("strict").tunnel(scene.server, OTHER, token=None):
        pass
