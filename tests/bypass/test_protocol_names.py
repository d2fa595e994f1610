"""Group P, and what of group N needs the live gate: the several names of one request are one, or nothing leaves.

Invariant 4. Each case asserts what the client was told, the record, and that no byte arrived.

Longer than a module should be, by its tables: a line an attack.
"""

import pytest

from tests.bypass.arena import DENIED, EVIL, ONE, PLAIN, TWO, Arena, arena_fixture, fields
from tests.lab.client import H2Client, Refused, connect, fetch, proxy_header
from tests.lab.dns import addresses, dns_server
from tests.lab.gate import configuration, gate
from tests.lab.upstream import upstream
from tidegate.policy.reasons import Reason

arena = arena_fixture()


# -- P-01 to P-04: CONNECT, SNI, Host ------------------------------------------------------------------


def test_P_01_plaintext_in_a_tunnel_for_another_host(arena: Arena) -> None:
    with arena.quiet(EVIL), arena.tunnel(arena.plain, tls=False) as raw:
        reply = raw.request("GET", "/echo", host=f"{EVIL}:{arena.plain.port}")
        story = arena.story(raw)
    story.denied(reply, Reason.AUTHORITY_MISMATCH)


def test_P_01_plaintext_in_a_tunnel_of_an_https_rule(arena: Arena) -> None:
    with arena.quiet(), arena.tunnel(arena.one, tls=False) as raw:
        reply = raw.request("GET", "/echo", host=arena.one.authority)
        story = arena.story(raw)
    story.denied(reply, Reason.SCHEME_NOT_ALLOWED)


@pytest.mark.parametrize("host", [ONE, EVIL], ids=["host_is_the_tunnel's", "host_is_the_sni's"])
def test_P_02_sni_of_another_name(arena: Arena, host: str) -> None:
    with arena.quiet(EVIL), arena.tunnel(arena.one, sni=EVIL) as raw:
        reply = raw.request("GET", "/echo", host=f"{host}:{arena.one.port}")
        story = arena.story(raw)
    story.denied(reply, Reason.SNI_MISMATCH)


@pytest.mark.parametrize("sni", [f"{ONE}..", f"x.{ONE}", "127.0.0.1", f"{ONE}:443", "one_allowed.test"])
def test_P_02_sni_that_only_resembles_the_name(arena: Arena, sni: str) -> None:
    with arena.quiet(), arena.tunnel(arena.one, tls=False) as raw:
        raw.send(_hello(sni.encode()))
        raw.closed()
        # A hello of the test's own cannot finish the handshake: it is enough that nothing left.
        story = arena.story(raw)
    assert story.conns[0][1]["reason"] in (Reason.SNI_MISMATCH.code, Reason.CLIENT_TLS.code)


def test_P_02_two_server_names(arena: Arena) -> None:
    with arena.quiet(EVIL), arena.tunnel(arena.one, tls=False) as raw:
        raw.send(_hello(ONE.encode(), EVIL.encode()))
        assert raw.closed()
        story = arena.story(raw)
    story.silently(Reason.CLIENT_TLS)


@pytest.mark.parametrize("name", [ONE, "keyed.wild.allowed.test"], ids=["plain_rule", "with_a_credential"])
def test_P_03_fronting(arena: Arena, name: str) -> None:
    placeholder = arena.session.placeholder("KEY")
    with arena.quiet(EVIL), arena.tunnel(arena.one, name) as raw:
        headers = [("Authorization", f"Bearer {placeholder}")]
        reply = raw.request("GET", "/echo", host=f"{EVIL}:{arena.one.port}", headers=headers)
        story = arena.story(raw)
    story.denied(reply, Reason.AUTHORITY_MISMATCH)


def test_P_03_the_credential_follows_the_verified_name_only(arena: Arena) -> None:
    placeholder = arena.session.placeholder("KEY")
    with arena.quiet(), arena.tunnel(arena.one) as raw:
        headers = [("Authorization", f"Bearer {placeholder}")]
        reply = raw.request("GET", "/echo", host=f"keyed.wild.allowed.test:{arena.one.port}", headers=headers)
        story = arena.story(raw)
    story.denied(reply, Reason.AUTHORITY_MISMATCH)


def test_P_03_absolute_target_of_another_host_in_a_tunnel(arena: Arena) -> None:
    with arena.quiet(EVIL), arena.tunnel(arena.one) as raw:
        reply = raw.request("GET", f"https://{EVIL}:{arena.one.port}/echo", host=arena.one.authority)
        story = arena.story(raw)
    story.denied(reply, Reason.AUTHORITY_MISMATCH)


def test_P_03_another_port_in_the_host(arena: Arena) -> None:
    with arena.quiet(), arena.tunnel(arena.one) as raw:
        reply = raw.request("GET", "/echo", host=f"{ONE}:{arena.one.port + 1}")
        story = arena.story(raw)
    story.denied(reply, Reason.AUTHORITY_MISMATCH)


def test_P_04_no_sni_keeps_the_name_of_the_tunnel(arena: Arena) -> None:
    with arena.tunnel(arena.one, sni=None) as raw:
        reply = raw.request("GET", "/echo", host=arena.one.authority)
        story = arena.story(raw)
    story.allowed()
    assert reply.json()["sni"] == ONE
    assert fields(reply)["host"] == [arena.one.authority]
    assert story.requests[0][1]["http"]["host"] == ONE


# -- P-06 to P-11: Host, keep-alive, coalescing ---------------------------------------------------------


@pytest.mark.parametrize("host", [EVIL, f"{PLAIN}:81", f"{PLAIN}.evil.test"])
def test_P_06_absolute_target_and_host_differ(arena: Arena, host: str) -> None:
    with arena.quiet(EVIL), arena.connect() as raw:
        raw.send(b"GET http://%b/echo HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (_plain(arena), host.encode(), arena.proof))
        reply = raw.reply()
        story = arena.story(raw)
    story.denied(reply, Reason.AMBIGUOUS_HOST)


@pytest.mark.parametrize("second", [ONE, EVIL], ids=["twice_the_same", "another"])
def test_P_07_two_host_lines(arena: Arena, second: str) -> None:
    with arena.quiet(EVIL), arena.tunnel(arena.one) as raw:
        raw.send(b"GET / HTTP/1.1\r\nHost: %b\r\nhost: %b\r\n\r\n" % (arena.one.authority.encode(), second.encode()))
        reply = raw.reply()
        story = arena.story(raw)
    story.denied(reply, Reason.AMBIGUOUS_HOST)


def test_P_07_two_host_lines_on_the_proxy_port(arena: Arena) -> None:
    name = _plain(arena)
    with arena.quiet(), arena.connect() as raw:
        raw.send(b"GET http://%b/ HTTP/1.1\r\nHost: %b\r\nHost: %b\r\n%b\r\n" % (name, name, name, arena.proof))
        reply = raw.reply()
        story = arena.story(raw)
    story.denied(reply, Reason.AMBIGUOUS_HOST)


def test_P_08_http_1_1_without_host(arena: Arena) -> None:
    with arena.quiet(), arena.tunnel(arena.one) as raw:
        raw.send(b"GET /echo HTTP/1.1\r\nAccept: */*\r\n\r\n")
        reply = raw.reply()
        story = arena.story(raw)
    story.denied(reply, Reason.AMBIGUOUS_HOST)


def test_P_08_http_1_0_takes_the_host_of_its_target(arena: Arena) -> None:
    with arena.connect() as raw:
        raw.send(b"GET http://%b/echo HTTP/1.0\r\n%b\r\n" % (_plain(arena), arena.proof))
        reply = raw.reply()
        story = arena.story(raw)
    story.allowed()
    assert fields(reply)["host"] == [_plain(arena).decode()]


@pytest.mark.parametrize("authority", [EVIL, f"x.{TWO}", f"{TWO}:1"])
def test_P_09_coalesced_stream_for_another_host(arena: Arena, authority: str) -> None:
    with arena.tunnel(arena.two, alpn=("h2",)) as raw:
        h2 = H2Client(raw)
        first = h2.request("GET", "/echo", authority=arena.two.authority)
        with arena.quiet(EVIL):
            reply = h2.request("GET", "/echo", authority=authority)
        third = h2.request("GET", "/echo", authority=arena.two.authority)
        story = arena.story(raw)
    assert (first.status, third.status) == (200, 200), third
    story.allowed(2)
    story.denied(reply, Reason.AUTHORITY_MISMATCH)


def test_P_09_P_33_a_stream_without_a_reading_is_refused_alone(arena: Arena) -> None:
    with arena.tunnel(arena.two, alpn=("h2",)) as raw:
        h2 = H2Client(raw)
        first = h2.request("GET", "/echo", authority=arena.two.authority)
        reply = h2.request("get", "/echo", authority=arena.two.authority)
        third = h2.request("GET", "/echo", authority=arena.two.authority)
        story = arena.story(raw)
    assert (first.status, third.status) == (200, 200), third
    story.denied(reply, Reason.MALFORMED_TARGET)
    story.allowed(2)


@pytest.mark.parametrize("authority", [f"{TWO}@evil.test", f"{TWO}, evil.test", f"evil.test\\{TWO}"])
def test_P_09_an_authority_that_is_none_ends_the_connection(arena: Arena, authority: str) -> None:
    with arena.quiet(EVIL), arena.tunnel(arena.two, alpn=("h2",)) as raw:
        h2 = H2Client(raw)
        with pytest.raises(EOFError):
            h2.request("GET", "/echo", authority=authority)
        story = arena.story(raw)
    story.silently(Reason.AMBIGUOUS)
    story.allowed(0)


def test_P_10_second_request_on_a_kept_connection_is_judged_alone(arena: Arena) -> None:
    with arena.connect() as raw:
        raw.send(b"GET http://%b/echo HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (_plain(arena), _plain(arena), arena.proof))
        assert raw.reply().status == 200
        with arena.quiet(EVIL):
            evil = f"{EVIL}:{arena.plain.port}".encode()
            raw.send(b"GET http://%b/echo HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (evil, evil, arena.proof))
            reply = raw.reply()
        story = arena.story(raw)
    story.denied(reply, Reason.NOT_IN_ALLOWLIST)
    story.allowed(1)


@pytest.mark.parametrize("body", [0, 200_000], ids=["no_body", "behind_a_large_body"])
def test_P_11_pipelined_second_request_is_judged(arena: Arena, body: int) -> None:
    name, evil = _plain(arena), f"{EVIL}:{arena.plain.port}".encode()
    head = b"POST http://%b/echo HTTP/1.1\r\nHost: %b\r\nContent-Length: %d\r\n%b\r\n"
    first = head % (name, name, body, arena.proof)
    second = b"GET http://%b/echo HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (evil, evil, arena.proof)
    arena.plain.reset()
    with arena.connect() as raw:
        raw.send(first + b"x" * body + second)
        assert raw.reply().json()["length"] == body
        reply = raw.reply()
        story = arena.story(raw)
    story.denied(reply, Reason.NOT_IN_ALLOWLIST)
    assert [request.method for request in arena.plain.requests] == ["POST"]


def test_P_11_pipelined_in_a_tunnel(arena: Arena) -> None:
    arena.one.reset()
    with arena.tunnel(arena.one) as raw:
        host = arena.one.authority.encode()
        raw.send(
            b"GET /echo HTTP/1.1\r\nHost: %b\r\n\r\nGET /echo HTTP/1.1\r\nHost: evil.test\r\n\r\n"
            b"GET /status/204 HTTP/1.1\r\nHost: %b\r\n\r\n" % (host, host)
        )
        assert raw.reply().status == 200
        reply = raw.reply()
        assert raw.reply().status == 204
        story = arena.story(raw)
    story.denied(reply, Reason.AUTHORITY_MISMATCH)
    story.allowed(2)
    assert len(arena.one.requests) == 2


# -- N: names on the live gate --------------------------------------------------------------------------

SAME = {
    "N_01_root_dot": f"{ONE}.",
    "N_02_upper_case": ONE.upper(),
    "N_02_mixed_case_and_dot": "One.Allowed.TEST.",
}


@pytest.mark.parametrize("name", SAME.values(), ids=SAME.keys())
def test_N_01_N_02_one_name_in_every_place(arena: Arena, name: str) -> None:
    with arena.tunnel(arena.one, name, sni=name.rstrip(".")) as raw:
        reply = raw.request("GET", "/echo", host=f"{name}:{arena.one.port}")
        story = arena.story(raw)
    story.allowed()
    assert reply.json()["sni"] == ONE
    assert fields(reply)["host"] == [arena.one.authority]
    assert story.conns[0][0]["conn"]["name"] == story.requests[0][0]["http"]["host"] == ONE


@pytest.mark.parametrize("name", [DENIED, f"{DENIED}.", DENIED.upper()], ids=["as_written", "N_01_dot", "N_02_upper"])
def test_N_01_N_02_deny_rule_in_every_spelling(arena: Arena, name: str) -> None:
    with arena.quiet(DENIED), arena.tunnel(arena.one, name, sni=DENIED) as raw:
        reply = raw.request("GET", "/echo", host=f"{name}:{arena.one.port}")
        story = arena.story(raw)
    story.denied(reply, Reason.NOT_IN_ALLOWLIST)
    assert story.conns[0][0]["reason"] == Reason.NOT_IN_ALLOWLIST.code


@pytest.mark.parametrize("name", [f"{PLAIN}.", PLAIN.upper()], ids=["N_01_dot", "N_02_upper"])
def test_N_01_N_02_absolute_form(arena: Arena, name: str) -> None:
    with arena.connect() as raw:
        raw.send(
            b"GET http://%b:%d/echo HTTP/1.1\r\nHost: %b:%d\r\n%b\r\n"
            % (name.encode(), arena.plain.port, PLAIN.encode(), arena.plain.port, arena.proof)
        )
        reply = raw.reply()
        arena.story(raw).allowed()
    assert fields(reply)["host"] == [arena.plain.authority]


MALFORMED = {
    "N_01_two_dots": (f"{ONE}..", Reason.MALFORMED_HOST),
    "N_08_nul": (f"evil.test\0.{ONE}", Reason.MALFORMED_TARGET),
    "N_09_space": (f"evil.test .{ONE}", Reason.MALFORMED_TARGET),
    "N_09_tab": (f"evil.test\t.{ONE}", Reason.MALFORMED_TARGET),
    "N_09_percent": (f"evil.test%0d%0a.{ONE}", Reason.MALFORMED_HOST),
    "N_09_del": (f"evil.test\x7f.{ONE}", Reason.MALFORMED_TARGET),
    "N_10_userinfo": (f"{ONE}@evil.test", Reason.MALFORMED_TARGET),
    "N_10_userinfo_with_port": (f"{ONE}:443@evil.test", Reason.MALFORMED_TARGET),
    "N_11_backslash": (f"evil.test\\@{ONE}", Reason.MALFORMED_TARGET),
    "N_12_fragment": (f"{ONE}#@evil.test", Reason.MALFORMED_TARGET),
    "N_12_query": (f"evil.test?.{ONE}", Reason.MALFORMED_TARGET),
    "N_12_semicolon": (f"evil.test;{ONE}", Reason.MALFORMED_TARGET),
    "N_13_brackets": (f"prefix.[{ONE}]", Reason.MALFORMED_HOST),
    "N_16_raw_unicode": ("fa\xdf.test", Reason.MALFORMED_TARGET),
    "N_17_empty_label": ("a..allowed.test", Reason.MALFORMED_HOST),
    "N_23_comma": (f"{ONE},evil.test", Reason.MALFORMED_HOST),
}


@pytest.mark.parametrize(("name", "reason"), MALFORMED.values(), ids=MALFORMED.keys())
def test_N_08_to_N_24_malformed_names_through_connect(arena: Arena, name: str, reason: Reason) -> None:
    with arena.quiet("evil.test"), arena.connect() as raw:
        reply = arena.ask(raw, name, port=arena.one.port, host=arena.one.authority)
        story = arena.story(raw)
    story.denied(reply, reason)


@pytest.mark.parametrize(("name", "reason"), MALFORMED.values(), ids=MALFORMED.keys())
def test_N_08_to_N_24_malformed_names_in_absolute_form(arena: Arena, name: str, reason: Reason) -> None:
    with arena.quiet("evil.test"), arena.connect() as raw:
        raw.send(
            b"GET http://%b:%d/echo HTTP/1.1\r\nHost: %b\r\n%b\r\n"
            % (name.encode("latin-1"), arena.plain.port, _plain(arena), arena.proof)
        )
        reply = raw.reply()
        story = arena.story(raw)
    story.denied(reply, Reason.AMBIGUOUS_HOST if "?" in name else reason)  # the query begins there


AS_HOST = {
    # As a field's value the byte breaks the head; as part of a target, the target.
    MALFORMED["N_08_nul"][0]: Reason.AMBIGUOUS,
    MALFORMED["N_09_del"][0]: Reason.AMBIGUOUS,
    MALFORMED["N_09_space"][0]: Reason.MALFORMED_HOST,
    MALFORMED["N_09_tab"][0]: Reason.MALFORMED_HOST,
    MALFORMED["N_16_raw_unicode"][0]: Reason.MALFORMED_HOST,
    MALFORMED["N_23_comma"][0]: Reason.AMBIGUOUS_HOST,
}


@pytest.mark.parametrize(("name", "reason"), MALFORMED.values(), ids=MALFORMED.keys())
def test_N_08_to_N_24_malformed_names_as_host(arena: Arena, name: str, reason: Reason) -> None:
    with arena.quiet("evil.test"), arena.tunnel(arena.one) as raw:
        raw.send(b"GET /echo HTTP/1.1\r\nHost: %b:%d\r\n\r\n" % (name.encode("latin-1"), arena.one.port))
        reply = raw.reply()
        story = arena.story(raw)
    story.denied(reply, AS_HOST.get(name, reason))


PORTS = {
    "22": (":22", Reason.PORT_NOT_ALLOWED),
    "0": (":0", Reason.MALFORMED_TARGET),
    "65536": (":65536", Reason.MALFORMED_TARGET),
    "0443": (":0443", Reason.MALFORMED_TARGET),
    "plus": (":+443", Reason.MALFORMED_TARGET),
    "two": (":443:80", Reason.MALFORMED_TARGET),
    "none": ("", Reason.MALFORMED_TARGET),
    "empty": (":", Reason.MALFORMED_TARGET),
}


@pytest.mark.parametrize(("port", "reason"), PORTS.values(), ids=PORTS.keys())
def test_N_18_ports(arena: Arena, port: str, reason: Reason) -> None:
    with arena.quiet(), arena.connect() as raw:
        reply = arena.ask(raw, ONE + port, host=ONE)
        story = arena.story(raw)
    story.denied(reply, reason)


def test_N_19_address_literal(arena: Arena) -> None:
    with arena.quiet(), arena.connect() as raw:
        reply = arena.ask(raw, "140.82.114.4", port=443)
        story = arena.story(raw)
    story.denied(reply, Reason.IP_LITERAL)


@pytest.mark.parametrize("name", ["localhost", "foo.localhost", "localhost."])
def test_N_20_localhost_by_name(arena: Arena, name: str) -> None:
    with arena.quiet(name), arena.connect() as raw:
        reply = arena.ask(raw, name, port=arena.one.port)
        story = arena.story(raw)
    story.denied(reply, Reason.SELF_OR_GATEWAY)


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1", "169.254.169.254"])
def test_N_20_a_name_that_answers_with_an_inner_address(address: str) -> None:
    # Its own gate: the rule must stand without `addresses`.
    with dns_server({"rebound.nip.test": addresses(address)}) as dns, upstream(names=("rebound.nip.test",)) as server:
        config = configuration(allow=[{"host": "*.nip.test", "ports": [server.port]}], dns=dns)
        with gate(config) as running:
            session = running.session()
            ca = running.state / "ca.pem"
            reply = fetch(running, "rebound.nip.test", server.port, token=session.token, ca=ca)
            lines = running.wait_audit(flow=reply.json()["request_id"], phase="end")
    assert (reply.status, reply.reason) == (502, "destination_unavailable")
    expected = Reason.RESOLVED_METADATA if address.startswith("169") else Reason.RESOLVED_BLOCKED
    assert lines[0]["reason"] == expected.code
    assert server.connections == 0


def test_N_21_names_of_the_hosts_file_are_not_known(arena: Arena) -> None:
    # The name is in no zone of the scripted DNS: only a hosts file could know it.
    with arena.quiet(), arena.tunnel(arena.one, f"nowhere.{EVIL}") as raw:
        reply = raw.request("GET", "/", host=f"nowhere.{EVIL}:{arena.one.port}")
        story = arena.story(raw)
    story.denied(reply, Reason.NOT_IN_ALLOWLIST)


def test_N_22_the_librarys_own_site_is_not_served(arena: Arena) -> None:
    with arena.quiet("mitm.it"), arena.connect() as raw:
        raw.send(b"GET http://mitm.it/ HTTP/1.1\r\nHost: mitm.it\r\n%b\r\n" % arena.proof)
        reply = raw.reply()
        story = arena.story(raw)
    story.denied(reply, Reason.NOT_IN_ALLOWLIST)


@pytest.mark.parametrize("host", [f"{ONE}, evil.test", f"{ONE},{ONE}"])
def test_N_23_two_hosts_in_one_line(arena: Arena, host: str) -> None:
    with arena.quiet(EVIL), arena.tunnel(arena.one) as raw:
        reply = raw.request("GET", "/", host=host)
        story = arena.story(raw)
    story.denied(reply, Reason.AMBIGUOUS_HOST)


@pytest.mark.parametrize("target", [" http://{0}/", "h\tttp://{0}/", "http:// {0}/", "\thttp://{0}/", "http://{0}/ x"])
def test_N_24_blanks_in_the_target(arena: Arena, target: str) -> None:
    with arena.quiet(EVIL), arena.connect() as raw:
        line = target.format(arena.plain.authority).encode()
        raw.send(b"GET %b HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (line, _plain(arena), arena.proof))
        reply = raw.reply()
        story = arena.story(raw)
    story.denied(reply, Reason.MALFORMED_TARGET)


def test_no_session_is_asked_for_one(arena: Arena) -> None:
    with arena.quiet(), connect(arena.gate) as raw:
        raw.send(b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n\r\n" % ((arena.one.authority.encode(),) * 2))
        reply = raw.reply(method="CONNECT")
        story = arena.story(raw)
    story.denied(reply, Reason.SESSION_REQUIRED)
    assert reply.header("proxy-authenticate") == 'Basic realm="tidegate"'


@pytest.mark.parametrize("token", ["wrong", "a.b.c", "x" * 600])
def test_a_wrong_token_is_refused(arena: Arena, token: str) -> None:
    with arena.quiet(), connect(arena.gate) as raw:
        name = arena.one.authority.encode()
        raw.send(b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (name, name, proxy_header(token)))
        reply = raw.reply(method="CONNECT")
        story = arena.story(raw)
    story.denied(reply, Reason.SESSION_INVALID)


def test_refused_is_an_exception_of_the_lab(arena: Arena) -> None:
    with pytest.raises(Refused) as refused, arena.tunnel(arena.one, "127.0.0.1"):
        pass
    assert refused.value.reply is not None
    assert refused.value.reply.reason == Reason.SELF_OR_GATEWAY.code


# -- bytes of the test's own -----------------------------------------------------------------------------


def _plain(arena: Arena) -> bytes:
    return arena.plain.authority.encode()


def _vector(size: int, data: bytes) -> bytes:
    return len(data).to_bytes(size) + data


def _hello(*names: bytes) -> bytes:
    """Return a TLS record with a ClientHello for `names` (RFC 8446 4.1.2, RFC 6066 3)."""
    server_name = _vector(2, b"".join(b"\0" + _vector(2, name) for name in names))
    extensions = b"\0\0" + _vector(2, server_name)
    extensions += bytes.fromhex("002b0003020304")  # supported_versions: 1.3
    extensions += bytes.fromhex("000a00040002001d")  # x25519
    extensions += bytes.fromhex("000d0004000204030033") + _vector(2, _vector(2, b"\0\x1d" + _vector(2, b"\x09" * 32)))
    body = b"\3\3" + b"r" * 32 + _vector(1, b"") + _vector(2, b"\x13\x01") + b"\1\0" + _vector(2, extensions)
    message = b"\1" + _vector(3, body)
    return b"\x16\3\1" + _vector(2, message)
