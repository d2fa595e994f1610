"""The world itself: each server says what came to it, each client sends what it is told."""

import dataclasses
import socket

import dns.message
import dns.query
import dns.rcode
import pytest

from tests.lab.certs import Authority
from tests.lab.client import H2Client, RawClient
from tests.lab.dns import addresses, cname, dns_server, sequence, truncated
from tests.lab.http import encode, payload
from tests.lab.upstream import reset, upstream


@dataclasses.dataclass
class Direct:
    host: str
    port: int


def client(port: int, host: str = "127.0.0.1") -> RawClient:
    return RawClient(socket.create_connection((host, port), 5))


def test_dns_answers_over_both_transports_and_counts():
    with dns_server({"a.test": addresses("127.0.0.1", "::1"), "long.test": truncated(addresses("10.0.0.1"))}) as server:
        query = dns.message.make_query("A.test.", "A")
        assert dns.query.udp(query, "127.0.0.1", 5, server.port).answer[0][0].to_text() == "127.0.0.1"
        assert dns.query.tcp(query, "127.0.0.1", 5, server.port).answer[0][0].to_text() == "127.0.0.1"
        reply, used_tcp = dns.query.udp_with_fallback(
            dns.message.make_query("long.test.", "A"), "127.0.0.1", 5, server.port
        )
        assert used_tcp
        assert reply.answer
        missing = dns.query.udp(dns.message.make_query("b.test.", "A"), "127.0.0.1", 5, server.port)
        assert missing.rcode() == dns.rcode.NXDOMAIN
        assert server.count("a.test") == 2
        assert server.count("a.test", transport="tcp") == 1
        assert server.count("*.evil.test") == 0


def test_dns_sequences_change_their_answer():
    with dns_server({"r.test": sequence(addresses("1.1.1.1"), cname("x.test", then=addresses("2.2.2.2")))}) as server:
        query = dns.message.make_query("r.test.", "A")
        seen = [len(dns.query.udp(query, "127.0.0.1", 5, server.port).answer) for _ in range(3)]
        assert seen == [1, 2, 2]


def test_http1_echo_ranges_chunks_and_counters():
    with Authority() as ca, upstream(ca=ca) as server:
        raw = client(server.port)
        raw.start_tls("api.allowed.test", ca=ca.pem)
        echo = raw.request(
            "POST", "/echo?x=1", host="h.test", headers=[("X-A", "1"), ("X-A", "2")], body=b"hello"
        ).json()
        assert echo["body"] == "hello"
        assert [value for name, value in echo["headers"] if name == "X-A"] == ["1", "2"]
        assert echo["sni"] == "api.allowed.test"
        part = raw.request("GET", "/bytes/1000", host="h.test", headers=[("Range", "bytes=10-19")])
        assert (part.status, part.body) == (206, payload(1000)[10:20])
        assert raw.request("GET", "/chunked/100000", host="h.test").body == payload(100_000)
        trailed = raw.request("GET", "/trailers", host="h.test")
        assert trailed.trailers == [("x-checksum", "1234")]
        assert raw.request("GET", "/early", host="h.test").early == [103]
        assert raw.request("GET", "/coded/br", host="h.test").body == encode("br", payload(10_000))
        assert raw.request("GET", "/close/5000", host="h.test").body == payload(5000)
        assert (server.connections, server.handshakes, len(server.requests)) == (1, 1, 7)
        assert server.bytes_in == sum(len(r.raw_head) + len(r.body) for r in server.requests)
        raw.close()


def test_http1_chunked_upload_expect_and_exact_bytes():
    with upstream(routes={"/odd": b"HTTP/1.1 200 OK\r\n\r\nodd", "/rst": reset}) as server:
        raw = client(server.port)
        raw.send(b"POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n")
        raw.send(b"3\r\nabc\r\n2\r\nde\r\n0\r\nx-t: 1\r\n\r\n")
        reply = raw.reply()
        assert (reply.early, reply.json()["body"]) == ([100], "abcde")
        assert server.requests[0].trailers == [(b"x-t", b"1")]
        assert raw.request("GET", "/odd", host="x").body == b"odd"
        raw.close()
        broken = client(server.port)
        with pytest.raises(EOFError):
            broken.request("GET", "/rst", host="x")
        broken.close()


def test_events_wait_until_released():
    with upstream() as server:
        server.gate_events()
        raw = client(server.port)
        raw.send(b"GET /sse/2 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert raw.head().status == 200
        server.release_event()
        assert b"event 1" not in raw.until(b"event 0\n\n")
        server.release_event()
        assert b"id: 1" in raw.until(b"event 1\n\n")
        raw.close()


def test_http2_streams_on_one_connection():
    with Authority() as ca, upstream(ca=ca, alpn=("h2", "http/1.1")) as server:
        raw = client(server.port)
        raw.start_tls("api.allowed.test", ca=ca.pem, alpn=("h2",))
        both = H2Client(raw)
        streams = [both.begin("POST", "/echo", authority="api.allowed.test", body=b"x" * 200_000) for _ in range(3)]
        assert [both.reply(stream).json()["length"] for stream in streams] == [200_000] * 3
        assert both.request("GET", "/bytes/300000", authority="a").body == payload(300_000)
        assert both.request("GET", "/trailers", authority="a").trailers == [("x-checksum", "1234")]
        assert server.connections == 1
        raw.close()


def test_web_socket_echoes():
    with upstream() as server:
        raw = client(server.port)
        raw.send(
            b"GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        assert raw.reply().status == 101
        raw.send(b"\x81\x82\x00\x00\x00\x00hi")
        assert raw.read() == b"\x81\x02hi"
        assert server.messages == ["hi"]
        raw.close()


def test_ipv6_loopback():
    with upstream(address="::1") as server:
        raw = client(server.port, "::1")
        assert raw.request("GET", "/status/204", host="x").status == 204
        raw.close()
