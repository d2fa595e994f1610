"""A connection's one name: CONNECT, ClientHello, pins, denials, records; no engine.

Longer than a module should be, since a connection has one life and each test is a step of it.
"""

import json
from pathlib import Path

import pytest

from tests.unit.exchange.stage import (
    SESSION,
    FakeKeeper,
    authorization,
    connect,
    grant,
    head,
    judged,
    rule,
    stage,
    tunnel,
)
from tidegate.exchange.channel import Channel, verdict_of
from tidegate.exchange.head import RequestHead
from tidegate.exchange.proxy_auth import proxy_token
from tidegate.exchange.reply import Denial
from tidegate.exchange.tunnel import Opaque, Tunnel
from tidegate.policy.reasons import Reason, Verdict
from tidegate.policy.rules import Budgets


def denied(channel: Channel) -> Reason:
    assert isinstance(channel.outcome, Denial), channel.outcome
    return channel.outcome.reason


# -- who --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "token"),
    [
        pytest.param([], None, id="none"),
        pytest.param([authorization("tok")], "tok", id="basic"),
        pytest.param([authorization("tok").replace("Basic", "bAsIc")], "tok", id="any-case"),
        pytest.param([authorization("a:b")], "a:b", id="colon-in-the-token"),
        pytest.param([authorization("tok"), authorization("tok")], Reason.SESSION_INVALID, id="twice"),
        pytest.param(["Bearer tok"], Reason.SESSION_INVALID, id="bearer"),
        pytest.param(["Basic"], Reason.SESSION_INVALID, id="empty"),
        pytest.param(["Basic !!!"], Reason.SESSION_INVALID, id="no-base64"),
        pytest.param(["Basic /////w=="], Reason.SESSION_INVALID, id="no-ascii"),
        pytest.param(["Basic dXNlcjp0b2s="], Reason.SESSION_INVALID, id="another-user"),
        pytest.param(["Basic czo="], Reason.SESSION_INVALID, id="no-password"),
        pytest.param(["Basic cw=="], Reason.SESSION_INVALID, id="no-colon"),
        pytest.param([authorization("t" * 513)], Reason.SESSION_INVALID, id="too-long"),
    ],
)
def test_the_token_is_read_in_one_form(fields: list[str], token: object) -> None:
    request = head("GET / HTTP/1.1", "Host: a.test", *(f"Proxy-Authorization: {value}" for value in fields))
    assert proxy_token(request) == token


@pytest.mark.parametrize(
    ("keeper", "token", "reason"),
    [
        pytest.param(FakeKeeper(opens=Reason.SESSION_REQUIRED), None, Reason.SESSION_REQUIRED, id="nobody"),
        pytest.param(FakeKeeper(opens=Reason.SESSION_INVALID), "bad", Reason.SESSION_INVALID, id="bad-token"),
        pytest.param(FakeKeeper(opens=grant(frozen=True)), "t", Reason.SESSION_FROZEN, id="frozen"),
        pytest.param(FakeKeeper(opens=grant(expires_in=0.0)), "t", Reason.SESSION_INVALID, id="expired"),
        pytest.param(FakeKeeper(away=6.0), "t", Reason.KEEPER_UNAVAILABLE, id="keeper-gone"),
    ],
)
async def test_who_may_not_pass_is_told_at_connect(
    tmp_path: Path, keeper: FakeKeeper, token: str | None, reason: Reason
) -> None:
    made = stage(tmp_path, keeper=keeper)
    channel = made.channel()
    await channel.admit(connect("api.test:443", token=token))
    assert denied(channel) is reason
    assert made.resolver.asked == []
    verdict = verdict_of(reason).value
    told = [line for line in made.phases() if line[0] == "conn"]
    assert told == [("conn", phase, verdict, reason.code) for phase in ("decision", "end")]


async def test_a_keeper_that_is_away_for_a_moment_stops_nothing(tmp_path: Path) -> None:
    made = stage(tmp_path, keeper=FakeKeeper(away=4.0))
    channel = made.channel()
    await channel.admit(connect("api.test:443"))
    assert channel.outcome == Tunnel()


async def test_one_connection_is_one_session(tmp_path: Path) -> None:
    made = stage(tmp_path)
    channel = made.channel()
    await channel.admit(connect("evil.test:22"))
    made.keeper.opens = grant(id="other00000000000")
    await channel.admit(connect("api.test:443", token="other"))
    assert denied(channel) is Reason.SESSION_INVALID
    assert channel.session is not None
    assert channel.session.id == SESSION


async def test_V_03_a_session_has_a_bounded_number_of_connections(tmp_path: Path) -> None:
    made = stage(tmp_path, connections_per_session=2)
    channels = [made.channel() for _ in range(3)]
    for channel in channels:
        await channel.admit(connect("api.test:443"))
    assert denied(channels[2]) is Reason.BUDGET
    refused = [line["session"] for line in made.records("conn") if line["reason"] == "budget"]
    assert refused == [SESSION, SESSION]  # decision and end, with the session that has too many
    channels[0].close()
    again = made.channel()
    await again.admit(connect("api.test:443"))
    assert again.outcome == Tunnel()


async def test_a_target_with_a_token_is_logged_without_it(tmp_path: Path) -> None:
    made = stage(tmp_path)
    await made.channel().admit(connect("s:a-token-of-a-session@api.test:443"))
    text = b"".join(path.read_bytes() for path in made.log.rglob("*.jsonl"))
    assert b"a-token-of-a-session" not in text
    assert b"api.test:443" in text


# -- CONNECT ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_head", "reason"),
    [
        pytest.param(connect("2130706433:443"), Reason.MALFORMED_HOST, id="A-02-decimal"),
        pytest.param(connect("0x7f.1:443"), Reason.MALFORMED_HOST, id="A-03-hex"),
        pytest.param(connect("[::1%lo]:443"), Reason.MALFORMED_HOST, id="zone"),
        pytest.param(connect("s@api.test:443"), Reason.MALFORMED_TARGET, id="userinfo"),
        pytest.param(connect("169.254.169.254:80"), Reason.METADATA, id="A-metadata"),
        pytest.param(connect("[fd00:ec2::254]:80"), Reason.METADATA, id="A-18-metadata-v6"),
        pytest.param(connect("metadata.google.internal:80"), Reason.METADATA, id="A-31-metadata-name"),
        pytest.param(connect("10.9.9.1:8080"), Reason.LOOP, id="P-28-loop"),
        pytest.param(connect("10.9.9.1:22"), Reason.SELF_OR_GATEWAY, id="own-address"),
        pytest.param(connect("localhost:443"), Reason.SELF_OR_GATEWAY, id="localhost"),
        pytest.param(connect("192.168.0.1:443"), Reason.BLOCKED_ADDRESS, id="private"),
        pytest.param(connect("1.1.1.1:443"), Reason.IP_LITERAL, id="literal"),
        pytest.param(connect("api.test:22"), Reason.PORT_NOT_ALLOWED, id="P-23-port"),
        pytest.param(connect("raw.test:9001"), Reason.PORT_NOT_ALLOWED, id="P-23-tcp-port"),
        pytest.param(
            head("CONNECT api.test:443 HTTP/1.1", "Host: evil.test:443", token="t"), Reason.AMBIGUOUS_HOST, id="host"
        ),
        pytest.param(
            head("CONNECT api.test:443 HTTP/1.1", "Host: api.test:80", token="t"), Reason.AMBIGUOUS_HOST, id="host-port"
        ),
        pytest.param(connect("api.test:443", "Content-Length: 5"), Reason.AMBIGUOUS, id="P-22-connect-with-a-body"),
        pytest.param(connect("api.test:443", "Transfer-Encoding: chunked"), Reason.AMBIGUOUS, id="P-22-chunked-body"),
    ],
)
async def test_spoken_at_connect(tmp_path: Path, request_head: RequestHead, reason: Reason) -> None:
    made = stage(tmp_path)
    channel = made.channel()
    await channel.admit(request_head)
    assert denied(channel) is reason
    assert made.resolver.asked == []


@pytest.mark.parametrize(
    "target", [b"api.test", b"/", b"http://api.test/", b"api.test:", b"api.test:0", b"api.test:65536"]
)
async def test_a_connect_target_is_host_and_port(tmp_path: Path, target: bytes) -> None:
    made = stage(tmp_path)
    channel = made.channel()
    request = connect("api.test:443")
    request.target = target
    await channel.admit(request)
    assert denied(channel).status == 400


async def test_P_36_a_denied_name_is_told_inside_the_tls_and_never_looked_up(tmp_path: Path) -> None:
    made = stage(tmp_path)
    channel = await tunnel(made, "evil.test")
    assert channel.outcome == Tunnel()
    assert channel.denied is Reason.NOT_IN_ALLOWLIST
    exchange = await judged(channel, head("GET / HTTP/1.1", "Host: evil.test"))
    assert isinstance(exchange.effect, Denial)
    assert exchange.effect.reason is Reason.NOT_IN_ALLOWLIST
    assert made.resolver.asked == []
    assert made.phases()[:2] == [
        ("conn", "decision", "deny", "not_in_allowlist"),
        ("http", "decision", "deny", "not_in_allowlist"),
    ]


async def test_certificates_for_denials_are_bounded(tmp_path: Path) -> None:
    made = stage(tmp_path, denied_leaves_per_minute=1)
    channel = await tunnel(made, "evil.test")
    assert channel.outcome == Tunnel()
    second = made.channel()
    await second.admit(connect("evil2.test:443"))
    assert denied(second) is Reason.NOT_IN_ALLOWLIST
    made.clock.forward(61)
    third = await tunnel(made, "evil3.test")
    assert third.outcome == Tunnel()


async def test_without_a_certificate_the_reason_is_told_at_connect(tmp_path: Path) -> None:
    made = stage(tmp_path)
    asked: list[tuple[str, bool]] = []

    async def certify(session: str, name: str, denied: bool) -> Reason | None:
        del session
        asked.append((name, denied))
        return Reason.KEEPER_UNAVAILABLE

    made.gate.certify = certify
    for name in ("api.test", "evil.test"):
        channel = made.channel()
        await channel.admit(connect(f"{name}:443"))
        assert denied(channel) is Reason.KEEPER_UNAVAILABLE
    assert asked == [("api.test", False), ("evil.test", True)]
    plain = made.channel()
    await plain.admit(connect("plain.test:80"))
    assert plain.outcome == Tunnel()


async def test_an_allowed_connect_is_on_record_and_looks_nothing_up(tmp_path: Path) -> None:
    made = stage(tmp_path)
    channel = made.channel()
    await channel.admit(connect("API.test.:443"))
    assert channel.outcome == Tunnel()
    (record,) = made.records("conn")
    assert (record["session"], record["owner"], record["rule"]) == (SESSION, "team", "api")
    assert record["conn"]["name"] == "api.test"  # type: ignore[index]
    assert made.resolver.asked == []
    channel.close()
    channel.close()
    assert [line["phase"] for line in made.records("conn")] == ["decision", "end"]


async def test_a_tcp_rule_opens_a_pipe_to_what_was_vetted(tmp_path: Path) -> None:
    made = stage(tmp_path)
    channel = made.channel()
    await channel.admit(connect("raw.test:9000"))
    assert channel.outcome == Opaque("raw.test", 9000, check_sni=False)
    pin = channel.upstreams.pin("raw.test", 9000)
    assert pin is not None
    assert [str(address) for address in pin.addresses] == ["8.8.4.4"]
    assert channel.upstreams.pin("raw.test", 9001) is None


async def test_a_passthrough_is_sealed_by_its_name(tmp_path: Path) -> None:
    made = stage(tmp_path)
    channel = made.channel()
    await channel.admit(connect("sealed.test:443"))
    assert channel.outcome == Opaque("sealed.test", 443, check_sni=True)


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        pytest.param("10.0.0.1", Reason.RESOLVED_BLOCKED, id="private"),
        pytest.param("8.8.8.8 127.0.0.1", Reason.RESOLVED_BLOCKED, id="D-one-of-two"),
        pytest.param("169.254.169.254", Reason.RESOLVED_METADATA, id="metadata"),
        pytest.param("", Reason.DNS_FAILURE, id="no-answer"),
    ],
)
async def test_D_an_opaque_destination_is_vetted_before_the_answer(
    tmp_path: Path, address: str, reason: Reason
) -> None:
    made = stage(tmp_path)
    made.resolver.zone["raw.test"] = address
    channel = made.channel()
    await channel.admit(connect("raw.test:9000"))
    assert denied(channel) is reason
    assert json.loads(channel.outcome.body)["reason"] == "destination_unavailable"  # type: ignore[union-attr]
    assert channel.upstreams.pin("raw.test", 9000) is None


@pytest.mark.parametrize(
    ("host", "fault"),
    [
        pytest.param("api.test:443", Reason.KEEPER_UNAVAILABLE, id="the keeper is gone"),
        pytest.param("api.test:443", Reason.INTERNAL_FAULT, id="the keeper cannot write"),
        pytest.param("api.test:443", Reason.SESSION_INVALID, id="the session has ended there"),
        pytest.param("raw.test:9000", Reason.KEEPER_UNAVAILABLE, id="raw, and the keeper is gone"),
        pytest.param("raw.test:9000", Reason.BUDGET, id="raw, and used up"),
    ],
)
async def test_a_name_that_cannot_be_counted_is_told_as_what_it_is_at_connect(
    tmp_path: Path, host: str, fault: Reason
) -> None:
    made = stage(tmp_path, policy={"budgets_session": Budgets(distinct_names_per_hour=2)})
    made.keeper.purse = 0 if fault is Reason.BUDGET else fault
    channel = made.channel()
    await channel.admit(connect(host))
    assert denied(channel) is fault
    assert made.records("conn")[0]["reason"] == fault.code


async def test_an_opaque_tunnel_whose_bytes_cannot_be_counted_has_used_up_no_budget(tmp_path: Path) -> None:
    made = stage(tmp_path, policy={"budgets_session": Budgets(upload_bytes_per_hour=1000)})
    channel = made.channel()
    await channel.admit(connect("raw.test:9000"))
    made.keeper.purse = Reason.KEEPER_UNAVAILABLE
    assert await channel.pay(10) is Reason.KEEPER_UNAVAILABLE


async def test_names_are_counted_where_a_budget_says_so(tmp_path: Path) -> None:
    made = stage(
        tmp_path,
        rules=(rule("all", "*.test", unsafe_wildcard=True),),
        policy={"budgets_session": Budgets(distinct_names_per_hour=2)},
    )
    made.keeper.purse = 2
    outcomes = []
    for name in ("a", "a", "b", "c"):
        channel = made.channel()
        await channel.admit(connect(f"{name}.test:443"))
        outcomes.append(channel.denied)
    assert outcomes == [None, None, None, Reason.BUDGET]


async def test_V_09_without_a_record_there_is_no_tunnel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = stage(tmp_path)
    monkeypatch.setattr(made.gate.recorder, "conn_decision", lambda *_, **__: Reason.AUDIT_UNAVAILABLE)
    channel = made.channel()
    await channel.admit(connect("api.test:443"))
    assert denied(channel) is Reason.AUDIT_UNAVAILABLE


async def test_P_40_denials_are_judged_alone_and_end_the_connection_at_last(tmp_path: Path) -> None:
    made = stage(tmp_path, denials_per_connection=3)
    channel = made.channel()
    for number in range(3):
        assert not channel.closing
        await channel.admit(connect(f"10.0.0.{number}:443"))
        assert denied(channel) is Reason.BLOCKED_ADDRESS
    assert channel.closing
    flows = [line["flow"] for line in made.records("conn")]
    assert len(flows) == 6
    assert len(set(flows)) == 3


async def test_an_incident_is_raised_for_what_looks_like_an_attack(tmp_path: Path) -> None:
    made = stage(tmp_path)
    await made.channel().admit(connect("169.254.169.254:80"))
    (incident,) = made.records("incident")
    assert incident["reason"] == "metadata"
    assert incident["session"] == SESSION


# -- TLS --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sni", "leaf", "reason"),
    [
        pytest.param("api.test", "api.test", None, id="same"),
        pytest.param("API.TEST", "api.test", None, id="other-case"),
        pytest.param("api.test.", "api.test", None, id="final-dot"),
        pytest.param(None, "api.test", None, id="P-04-none"),
        pytest.param("evil.test", "evil.test", Reason.SNI_MISMATCH, id="P-02-other"),
        pytest.param("files.test", "files.test", Reason.SNI_MISMATCH, id="P-02-other-allowed"),
        pytest.param("api.test\x00.evil.test", "api.test", Reason.SNI_MISMATCH, id="NUL"),
        pytest.param("api.test:443", "api.test", Reason.SNI_MISMATCH, id="with-a-port"),
        pytest.param("2130706433", "api.test", Reason.SNI_MISMATCH, id="decimal"),
        pytest.param("ä.test", "api.test", Reason.SNI_MISMATCH, id="no-ascii"),
        pytest.param("", "api.test", Reason.SNI_MISMATCH, id="empty"),
    ],
)
async def test_P_02_the_server_name_is_the_tunnels_name(
    tmp_path: Path, sni: str | None, leaf: str, reason: Reason | None
) -> None:
    made = stage(tmp_path)
    channel = made.channel()
    await channel.admit(connect("api.test:443"))
    channel.hello(sni)
    assert channel.leaf_name == leaf
    assert channel.denied is reason
    exchange = await judged(channel, head("GET / HTTP/1.1", "Host: api.test"))
    assert (isinstance(exchange.effect, Denial) and exchange.effect.reason) == (reason or False)


async def test_a_denied_tunnel_keeps_its_first_reason(tmp_path: Path) -> None:
    made = stage(tmp_path)
    channel = await tunnel(made, "evil.test", sni="other.test")
    assert channel.denied is Reason.NOT_IN_ALLOWLIST


# -- pins -------------------------------------------------------------------------------------------


async def test_D_06_a_pin_is_for_one_name_and_port_and_grows_old(tmp_path: Path) -> None:
    made = stage(tmp_path)
    channel = await tunnel(made)
    await judged(channel, head("GET / HTTP/1.1", "Host: api.test"))
    assert channel.upstreams.pin("api.test", 443) is not None
    assert channel.upstreams.pin("api.test", 80) is None
    assert channel.upstreams.pin("93.184.216.34", 443) is None
    channel.upstreams.opened("api.test", 443, "93.184.216.34")
    assert channel.upstreams.has_open("api.test", 443)
    made.clock.forward(300)
    assert channel.upstreams.pin("api.test", 443) is None
    assert not channel.upstreams.has_open("api.test", 443)
    channel.upstreams.closed("api.test", 443)
    channel.upstreams.closed("api.test", 443)
    assert not channel.upstreams.has_open("api.test", 443)


async def test_an_open_connection_is_used_again_without_a_look_up(tmp_path: Path) -> None:
    made = stage(tmp_path)
    channel = await tunnel(made)
    await judged(channel, head("GET /1 HTTP/1.1", "Host: api.test"))
    channel.upstreams.opened("api.test", 443, "93.184.216.34")
    await judged(channel, head("GET /2 HTTP/1.1", "Host: api.test"))
    assert made.resolver.asked == ["api.test"]
    channel.close()
    end = made.records("conn")[-1]
    assert end["conn"]["address"] == "93.184.216.34"  # type: ignore[index]
    assert end["conn"]["vetted"] == ["93.184.216.34"]  # type: ignore[index]


# -- refusals and the end ---------------------------------------------------------------------------


async def test_what_the_engine_refuses_before_a_request_is_on_record(tmp_path: Path) -> None:
    made = stage(tmp_path)
    channel = made.channel()
    reply = channel.refuse(Reason.NOT_HTTP)
    assert reply.reason is Reason.NOT_HTTP
    assert channel.closing
    channel.close()
    assert made.phases() == [("conn", "decision", "deny", "not_http"), ("conn", "end", "deny", "not_http")]


async def test_what_the_engine_refuses_in_a_tunnel_is_a_request_of_its_own(tmp_path: Path) -> None:
    made = stage(tmp_path)
    channel = await tunnel(made)
    channel.refuse(Reason.AMBIGUOUS)
    channel.close()
    assert made.phases() == [
        ("conn", "decision", "allow", None),
        ("http", "decision", "deny", "ambiguous"),
        ("http", "end", "deny", "ambiguous"),
        ("conn", "end", "deny", "ambiguous"),
    ]
    parents = {line["parent"] for line in made.records("http")}
    assert parents == {made.records("conn")[0]["flow"]}


async def test_P_37_a_failed_handshake_is_an_error_of_its_own(tmp_path: Path) -> None:
    made = stage(tmp_path)
    channel = await tunnel(made)
    channel.tls_failed()
    channel.close()
    assert made.phases()[-1] == ("conn", "end", "error", "client_tls")


async def test_closing_ends_every_open_exchange(tmp_path: Path) -> None:
    made = stage(tmp_path)
    channel = await tunnel(made)
    await judged(channel, head("GET / HTTP/1.1", "Host: api.test"))
    channel.close()
    assert made.phases() == [
        ("conn", "decision", "allow", None),
        ("http", "decision", "allow", None),
        ("http", "end", "error", None),
        ("conn", "end", "allow", None),
    ]
    assert channel.session is not None
    assert channel.session.channels == set()


async def test_a_fault_is_on_record_with_its_place_alone(tmp_path: Path) -> None:
    made = stage(tmp_path)
    channel = await tunnel(made)
    channel.fault("ValueError at x.py:1 in y")
    channel.close()
    (fault,) = made.records("fault")
    assert fault["fault"]["where"] == "ValueError at x.py:1 in y"  # type: ignore[index]
    assert made.records("conn")[-1]["conn"]["end"] == "internal_fault"  # type: ignore[index]


def test_every_reason_is_a_denial_or_an_error() -> None:
    assert verdict_of(Reason.DNS_FAILURE) is Verdict.ERROR
    assert verdict_of(Reason.RESOLVED_METADATA) is Verdict.DENY
    assert {verdict_of(reason) for reason in Reason} == {Verdict.DENY, Verdict.ERROR}
