"""Group P, what a tunnel is: HTTP and nothing else, to the port and scheme of a rule, over verified TLS.

Invariants 1, 2 and 4. A denied tunnel moves no packet; what is refused without a word is in the log all the same.

Longer than a module should be, by its tables: a line an attack.
"""

import datetime
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import trustme

from tests.bypass.arena import EVIL, ONE, PLAIN, Arena, arena_fixture, fields
from tests.lab.certs import Authority
from tests.lab.client import H2Client, RawClient, Refused, fetch
from tests.lab.dns import addresses, dns_server
from tests.lab.gate import Gate, Session, configuration, gate, rule
from tests.lab.upstream import Upstream, upstream
from tidegate.policy.reasons import Reason

arena = arena_fixture()


# -- P-21, P-22: what is no HTTP ---------------------------------------------------------------------------

NOT_HTTP = {
    "P_21_ssh": b"\x00SSH-2.0-OpenSSH_9.6\r\n",
    "P_21_binary": bytes(range(256)),
    "P_21_redis": b"*1\r\n$4\r\nPING\r\n",
    "P_22_leading_crlf": b"\r\nGET /echo HTTP/1.1\r\nHost: {host}\r\n\r\n",
    "P_22_leading_space": b" GET /echo HTTP/1.1\r\nHost: {host}\r\n\r\n",
    "P_22_leading_nul": b"\0GET /echo HTTP/1.1\r\nHost: {host}\r\n\r\n",
    "P_22_digit": b"1GET /echo HTTP/1.1\r\nHost: {host}\r\n\r\n",
    "P_26_socks5": b"\x05\x01\x00",
    "P_26_socks4": b"\x04\x01\x01\xbb\x7f\x00\x00\x01\x00",
    "P_26_socks4a": b"\x04\x01\x01\xbb\x00\x00\x00\x01\x00evil.test\x00",
}


@pytest.fixture(params=["proxy_port", "tunnel", "inside_tls"])
def place(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextmanager
def opened(arena: Arena, place: str) -> Iterator[RawClient]:
    if place == "proxy_port":
        with arena.connect() as raw:
            yield raw
    else:
        with arena.tunnel(arena.one, tls=place == "inside_tls") as raw:
            yield raw


@pytest.mark.parametrize("data", NOT_HTTP.values(), ids=NOT_HTTP.keys())
def test_P_21_P_22_P_26_what_is_no_http_is_closed(arena: Arena, place: str, data: bytes) -> None:
    with arena.quiet(), opened(arena, place) as raw:
        raw.send(data.replace(b"{host}", arena.one.authority.encode()))
        assert raw.read_all() == b""
        story = arena.story(raw)
    story.silently(Reason.NOT_HTTP)


@pytest.mark.parametrize("data", [b"SSH-2.0-OpenSSH_9.6\r\n", b"EHLO evil.test\r\n", b"USER root\r\nPASS x\r\n"])
def test_P_21_banner_that_begins_with_letters(arena: Arena, place: str, data: bytes) -> None:
    with arena.quiet(), opened(arena, place) as raw:
        raw.send(data + b"\r\n")
        said = raw.read_all()
        story = arena.story(raw)
    assert said == b"" or said.startswith(b"HTTP/1.1 400 ")
    assert story.conns[0][1]["reason"] in (Reason.NOT_HTTP.code, Reason.MALFORMED_TARGET.code)


def test_P_22_first_byte_alone_is_still_http(arena: Arena) -> None:
    with arena.tunnel(arena.one) as raw:
        host = arena.one.authority.encode()
        raw.send_slowly([b"G", b"ET /echo HTTP/1.1\r\nHo", b"st: evil.test\r\n\r\n"])
        reply = raw.reply()
        raw.send_slowly([b"G", b"ET /ec", b"ho HTTP/1.1\r\nHost: %b\r\n\r" % host, b"\n"])
        assert raw.reply().status == 200
        story = arena.story(raw)
    story.denied(reply, Reason.AUTHORITY_MISMATCH)
    story.allowed()


def test_P_22_odd_method_is_judged_as_http(arena: Arena) -> None:
    with arena.quiet(), arena.tunnel(arena.one) as raw:
        reply = raw.request("X-Y", "/echo", host=EVIL)
        story = arena.story(raw)
    story.denied(reply, Reason.AUTHORITY_MISMATCH)


@pytest.mark.parametrize("head", [b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n"])
def test_P_22_connect_with_a_body(arena: Arena, head: bytes) -> None:
    name = arena.one.authority.encode()
    with arena.quiet(), arena.connect() as raw:
        raw.send(b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n%b%b\r\nhello" % (name, name, head, arena.proof))
        reply = raw.reply()
        story = arena.story(raw)
    story.denied(reply, Reason.AMBIGUOUS)


def test_P_22_bytes_behind_the_connect_are_the_tunnels(arena: Arena) -> None:
    name = arena.plain.authority.encode()
    with arena.quiet(), arena.connect() as raw:
        behind = b"GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n"
        raw.send(b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n%b\r\n%b" % (name, name, arena.proof, behind))
        assert raw.reply(method="CONNECT").status == 200
        reply = raw.reply()
        story = arena.story(raw)
    story.denied(reply, Reason.AUTHORITY_MISMATCH)


# -- P-23 to P-30: ports, nesting, the gate itself, schemes ---------------------------------------------------


@pytest.mark.parametrize("port", [22, 25, 6379, 9200])
def test_P_23_other_ports_of_an_allowed_name(arena: Arena, port: int) -> None:
    with arena.quiet(ONE), arena.connect() as raw:
        reply = arena.ask(raw, ONE, port=port)
        story = arena.story(raw)
    story.denied(reply, Reason.PORT_NOT_ALLOWED)


@pytest.mark.parametrize("tls", [True, False], ids=["inside_tls", "in_clear"])
def test_P_24_connect_inside_connect(arena: Arena, tls: bool) -> None:
    server = arena.one if tls else arena.plain
    with arena.quiet(EVIL), arena.tunnel(server, tls=tls) as raw:
        raw.send(b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n\r\n" % ((f"{EVIL}:{server.port}".encode(),) * 2))
        reply = raw.reply()
        story = arena.story(raw)
    story.denied(reply, Reason.MALFORMED_TARGET)


def test_P_24_a_relay_gets_the_same_verdict(arena: Arena) -> None:
    # The gate as its own upstream: what a relay in the sandbox would send on.
    with arena.quiet(), arena.connect() as raw:
        reply = arena.ask(raw, "127.0.0.1", port=arena.gate.port)
        story = arena.story(raw)
    story.denied(reply, Reason.LOOP)


def test_P_27_alt_svc_does_not_reach_the_client(arena: Arena) -> None:
    with arena.tunnel(arena.one) as raw:
        target = '/header?name=alt-svc&value=h3=":443"'.replace('"', "%22")
        reply = raw.request("GET", target, host=arena.one.authority)
        arena.story(raw).allowed()
    assert reply.status == 200
    assert reply.header("alt-svc") is None


LOOPS = {
    "origin_form": (b"GET / HTTP/1.1\r\nHost: {gate}\r\n{proof}\r\n", Reason.LOOP),
    "origin_form_for_an_allowed_host": (b"GET /echo HTTP/1.1\r\nHost: {plain}\r\n{proof}\r\n", Reason.LOOP),
    "origin_form_of_a_stranger": (b"GET / HTTP/1.1\r\nHost: {gate}\r\n\r\n", Reason.LOOP),
    "absolute_form": (b"GET http://{gate}/ HTTP/1.1\r\nHost: {gate}\r\n{proof}\r\n", Reason.LOOP),
    "asterisk": (b"OPTIONS * HTTP/1.1\r\nHost: {gate}\r\n{proof}\r\n", Reason.MALFORMED_TARGET),
    "connect": (b"CONNECT {gate} HTTP/1.1\r\nHost: {gate}\r\n{proof}\r\n", Reason.LOOP),
    "localhost": (b"CONNECT localhost:{port} HTTP/1.1\r\nHost: localhost\r\n{proof}\r\n", Reason.SELF_OR_GATEWAY),
}  # fmt: skip


@pytest.mark.parametrize(("data", "reason"), LOOPS.values(), ids=LOOPS.keys())
def test_P_28_requests_to_the_gate_itself(arena: Arena, data: bytes, reason: Reason) -> None:
    filled = data.replace(b"{gate}", f"{arena.gate.host}:{arena.gate.port}".encode()).replace(b"{proof}", arena.proof)
    filled = filled.replace(b"{plain}", arena.plain.authority.encode()).replace(b"{port}", b"%d" % arena.gate.port)
    with arena.quiet(), arena.connect() as raw:
        raw.send(filled)
        reply = raw.reply()
        story = arena.story(raw)
    story.denied(reply, reason)


def test_P_29_plain_http_on_an_https_rule(arena: Arena) -> None:
    placeholder = arena.session.placeholder("KEY").encode()
    name = f"keyed.wild.allowed.test:{arena.one.port}".encode()
    with arena.quiet(), arena.connect() as raw:
        raw.send(
            b"GET http://%b/ HTTP/1.1\r\nHost: %b\r\nAuthorization: Bearer %b\r\n%b\r\n"
            % (name, name, placeholder, arena.proof)
        )
        reply = raw.reply()
        story = arena.story(raw)
    story.denied(reply, Reason.SCHEME_NOT_ALLOWED)


def test_P_29_no_credential_in_clear(arena: Arena) -> None:
    # A plain rule covers the name as well; the placeholder is refused there.
    placeholder = arena.session.placeholder("KEY").encode()
    name = f"keyed.wild.allowed.test:{arena.plain.port}".encode()
    with arena.quiet(), arena.connect() as raw:
        raw.send(
            b"GET http://%b/ HTTP/1.1\r\nHost: %b\r\nAuthorization: Bearer %b\r\n%b\r\n"
            % (name, name, placeholder, arena.proof)
        )
        reply = raw.reply()
        story = arena.story(raw)
    story.denied(reply, Reason.CREDENTIAL_OUT_OF_SCOPE)


SCHEMES = {
    "https": ("https://{one}/echo", Reason.SCHEME_NOT_ALLOWED),
    "ftp": ("ftp://{plain}/echo", Reason.MALFORMED_TARGET),
    "file": ("file:///etc/passwd", Reason.MALFORMED_TARGET),
    "ws": ("ws://{plain}/echo", Reason.MALFORMED_TARGET),
    "wss": ("wss://{one}/echo", Reason.MALFORMED_TARGET),
    "no_scheme": ("//{plain}/echo", Reason.LOOP),
    "one_slash": ("http:/{plain}/echo", Reason.MALFORMED_TARGET),
    "no_slash": ("http:{plain}/echo", Reason.MALFORMED_TARGET),
}


@pytest.mark.parametrize(("target", "reason"), SCHEMES.values(), ids=SCHEMES.keys())
def test_P_30_schemes_of_an_absolute_target(arena: Arena, target: str, reason: Reason) -> None:
    whole = target.replace("{one}", arena.one.authority).replace("{plain}", arena.plain.authority)
    host = arena.one.authority if "{one}" in target else arena.plain.authority
    with arena.quiet(), arena.connect() as raw:
        raw.send(b"GET %b HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (whole.encode(), host.encode(), arena.proof))
        reply = raw.reply()
        story = arena.story(raw)
    story.denied(reply, reason)


# -- P-36, P-37: CONNECT opens nothing, TLS that fails --------------------------------------------------------


def test_P_36_an_allowed_connect_opens_nothing_before_a_request(arena: Arena) -> None:
    with arena.quiet(ONE), arena.tunnel(arena.one) as raw:
        story = arena.story(raw)
    assert story.conns[0][0]["verdict"] == "allow"
    assert story.requests == []


def test_P_36_a_denied_connect_opens_nothing(arena: Arena) -> None:
    with arena.quiet(EVIL), arena.tunnel(arena.one, EVIL) as raw:
        reply = raw.request("GET", "/echo", host=f"{EVIL}:{arena.one.port}")
        story = arena.story(raw)
    story.denied(reply, Reason.NOT_IN_ALLOWLIST)
    assert story.conns[0][0]["reason"] == Reason.NOT_IN_ALLOWLIST.code


def test_P_37_a_client_that_refuses_our_certificate(arena: Arena) -> None:
    with arena.quiet(), arena.tunnel(arena.one, tls=False) as raw:
        context = ssl.create_default_context()
        port = raw.sock.getsockname()[1]
        with pytest.raises(ssl.SSLCertVerificationError):
            raw.sock = context.wrap_socket(raw.sock, server_hostname=ONE)
        story = arena.story(raw, port=port)
    assert story.conns[0][0]["verdict"] == "allow"
    assert story.conns[0][1]["reason"] == Reason.CLIENT_TLS.code
    assert story.conns[0][1]["verdict"] == "error"


@pytest.mark.parametrize(
    "data",
    [b"\x16\x03\x01\x00\x05hello", b"\x16\x03\x01\x00\x00", b"\x16\x02\x00\x00\x05hello", b"\x16\x03\x01\xff\xff"],
    ids=["no_hello", "empty_record", "ssl_2", "long_record"],
)
def test_P_37_tls_that_is_none(arena: Arena, data: bytes) -> None:
    with arena.quiet(), arena.tunnel(arena.one, tls=False) as raw:
        raw.send(data)
        raw.read_all()
        story = arena.story(raw)
    story.silently(Reason.CLIENT_TLS)


def test_P_37_a_hello_that_stops_in_the_middle(arena: Arena) -> None:
    with arena.quiet(), arena.tunnel(arena.one, tls=False) as raw:
        raw.send(b"\x16\x03\x01\x01\x00\x01\x00")
        story = arena.story(raw)
    assert story.requests == []


# -- P-38: the upstream's certificate ---------------------------------------------------------------------------


class Bad:
    """Servers whose certificates prove nothing, behind one gate that trusts the lab's CA alone."""

    def __init__(self, gate: Gate, session: Session, servers: dict[str, Upstream]) -> None:
        self.gate, self.session, self.servers = gate, session, servers


def _context(issuer: trustme.CA, *names: str, expired: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    past = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    issuer.issue_cert(*names, not_after=past if expired else None).configure_cert(context)
    return context


CERTIFICATES = ["expired", "self_signed", "wrong_name", "common_name_only", "wildcard_too_high"]


@pytest.fixture(scope="module")
def bad() -> Iterator[Bad]:
    names = {name: f"{name.replace('_', '-')}.bad.test" for name in CERTIFICATES}
    with Authority() as ca, dns_server({"*.bad.test": addresses("127.0.0.1")}) as dns:
        known, stranger = ca._ca, trustme.CA()
        common = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        known.issue_cert("other.test", common_name=names["common_name_only"]).configure_cert(common)
        with (
            upstream(names=(names["expired"],), context=_context(known, names["expired"], expired=True)) as expired,
            upstream(names=(names["self_signed"],), context=_context(stranger, names["self_signed"])) as self_signed,
            upstream(names=(names["wrong_name"],), context=_context(known, "other.test")) as wrong_name,
            upstream(names=(names["common_name_only"],), context=common) as common_name_only,
            upstream(names=(names["wildcard_too_high"],), context=_context(known, "*.test")) as wildcard_too_high,
        ):
            made = (expired, self_signed, wrong_name, common_name_only, wildcard_too_high)
            servers = dict(zip(CERTIFICATES, made, strict=True))
            allow = [rule(names[name], port=server.port) for name, server in servers.items()]
            with gate(configuration(allow=allow, dns=dns, ca=ca)) as running:
                yield Bad(running, running.session(), servers)


@pytest.mark.parametrize("kind", CERTIFICATES)
def test_P_38_upstream_that_does_not_prove_its_name(bad: Bad, kind: str) -> None:
    server = bad.servers[kind]
    ca = bad.gate.state / "ca.pem"
    headers = [("X-Secretish", "not for this server")]
    reply = fetch(bad.gate, server.names[0], server.port, "/echo", token=bad.session.token, ca=ca, headers=headers)
    assert (reply.status, reply.reason) == (502, Reason.UPSTREAM_TLS.code)
    assert "tls_certificate_error" in (reply.header("proxy-status") or "")
    line = bad.gate.wait_audit(flow=reply.json()["request_id"], phase="end")[0]
    assert (line["verdict"], line["reason"]) == ("error", Reason.UPSTREAM_TLS.code)
    assert server.requests == []


@pytest.mark.parametrize("key", ["ssl_insecure", "insecure", "verify"])
def test_P_38_no_switch_turns_verification_off(bad: Bad, key: str) -> None:
    text = bad.gate.config_file.read_text()
    status, _ = bad.gate.reload(text.replace("upstream:\n", f"upstream:\n  {key}: true\n"))
    assert status >= 400
    bad.gate.config_file.write_text(text)
    assert bad.gate.reload(text)[0] < 300


# -- P-40: after a denial ---------------------------------------------------------------------------------------


def test_P_40_each_request_after_a_denied_connect_is_judged_alone(arena: Arena) -> None:
    with arena.connect() as raw:
        first = arena.ask(raw, "169.254.169.254", port=80)
        second = arena.ask(raw, ONE, port=22)
        plain = arena.plain.authority.encode()
        raw.send(b"GET http://%b/echo HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (plain, plain, arena.proof))
        third = raw.reply()
        story = arena.story(raw)
    story.denied(first, Reason.METADATA)
    story.denied(second, Reason.PORT_NOT_ALLOWED)
    assert third.status == 200
    story.allowed()
    assert fields(third)["host"] == [arena.plain.authority]


def test_P_40_a_tunnel_after_a_denied_one(arena: Arena) -> None:
    with arena.connect() as raw:
        denied = arena.ask(raw, ONE, port=22)
        assert arena.ask(raw, ONE, port=arena.one.port).status == 200
        raw.start_tls(ONE, ca=arena.ca)
        assert raw.request("GET", "/echo", host=arena.one.authority).status == 200
        story = arena.story(raw)
    story.denied(denied, Reason.PORT_NOT_ALLOWED)
    story.allowed()
    assert [pair[0]["verdict"] for pair in story.conns] == ["deny", "allow"]


def test_P_40_a_denied_name_is_not_remembered_for_origin_form(arena: Arena) -> None:
    with arena.quiet(), arena.connect() as raw:
        arena.ask(raw, PLAIN, port=22)
        raw.send(b"GET /echo HTTP/1.1\r\nHost: %b:22\r\n%b\r\n" % (PLAIN.encode(), arena.proof))
        reply = raw.reply()
        story = arena.story(raw)
    story.denied(reply, Reason.LOOP)


def test_P_40_denials_at_connect_end_the_connection(arena: Arena) -> None:
    with arena.quiet(), arena.connect() as raw:
        count = 0
        while True:
            reply = arena.ask(raw, f"n{count}.evil.test", port=22)
            count += 1
            if reply.header("connection") == "close":
                break
        assert raw.closed()
        story = arena.story(raw)
    assert count == 20
    assert len(story.conns) == 20


@pytest.mark.parametrize("kind", ["h1", "h2"])
def test_P_40_denials_in_a_tunnel_end_the_connection(arena: Arena, kind: str) -> None:
    answered = 0
    alpn = ("h2",) if kind == "h2" else ("http/1.1",)
    with arena.quiet(), arena.tunnel(arena.one, f"{kind}.evil.test", alpn=alpn) as raw:
        h2 = H2Client(raw) if kind == "h2" else None
        host = f"{kind}.evil.test:{arena.one.port}"
        try:
            for _ in range(30):
                reply = h2.request("GET", "/", authority=host) if h2 else raw.request("GET", "/", host=host)
                assert reply.status == 403
                answered += 1
        except (EOFError, OSError):
            pass
        story = arena.story(raw)
    assert answered == 20
    assert len(story.requests) == 20


def test_a_connection_without_a_request_is_recorded(arena: Arena) -> None:
    with arena.connect() as raw:
        story = arena.story(raw)
    story.silently(Reason.CLIENT_TIMEOUT)
    assert len(story.conns) == 1


@pytest.mark.parametrize("data", [b"GET http://x/ HT", b"CONNECT x", b"G"])
def test_a_connection_with_half_a_request_is_recorded(arena: Arena, data: bytes) -> None:
    with arena.quiet(), arena.connect() as raw:
        raw.send(data)
        story = arena.story(raw)
    assert len(story.conns) == 1


def test_refusals_at_connect_carry_no_tunnel(arena: Arena) -> None:
    with pytest.raises(Refused), arena.tunnel(arena.one, "[::1]"):
        pass


@pytest.mark.parametrize("host", ["abc.ngrok-free.app", "x.trycloudflare.com"])
def test_P_25_an_allowed_tunnel_service_is_warned_of(host: str) -> None:
    with gate(configuration(allow=[{"host": host}])) as running:
        checked = running.cli("policy", "check", str(running.config_file), check=False)
        assert "tunnel" in checked.stdout + checked.stderr
        assert "tunnel" in running.stderr
