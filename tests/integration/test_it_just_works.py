"""What must simply work: each thing with HTTP/1.1 and HTTP/2 clients, on HTTP/1.1 and HTTP/2 upstreams.

The client is curl, and the raw clients of the lab where curl cannot do it.
"""

import gzip
import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from tests.lab.certs import Authority
from tests.lab.client import H2Client, tunnel
from tests.lab.dns import DnsServer, addresses, dns_server
from tests.lab.gate import Gate, Session, configuration, gate, rule
from tests.lab.http import encode, payload
from tests.lab.upstream import Upstream, upstream

ONE = "one.allowed.test"
TWO = "two.allowed.test"
SIX = "six.allowed.test"
BROKEN = "broken6.allowed.test"


@dataclass
class World:
    gate: Gate
    session: Session
    one: Upstream
    two: Upstream
    six: Upstream
    plain: Upstream
    dns: DnsServer

    def server(self, upstream: str) -> Upstream:
        return {"h1": self.one, "h2": self.two}[upstream]

    def curl(self, *arguments: str, input: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        command = ["curl", "-sS", "-m", "30", "--cacert", str(self.gate.state / "ca.pem")]
        return subprocess.run(
            [*command, "-x", self.session.proxy_url, *arguments],
            capture_output=True,
            input=input,
            check=False,
        )

    def get(self, client: str, url: str, *arguments: str, input: bytes | None = None) -> bytes:
        flag = {"h1": "--http1.1", "h2": "--http2"}[client]
        done = self.curl(flag, *arguments, url, input=input)
        assert done.returncode == 0, (done.stderr.decode(), self.gate.stderr[-2000:])
        return done.stdout


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    names = {
        ONE: addresses("127.0.0.1"),
        TWO: addresses("127.0.0.1"),
        SIX: addresses("::1"),
        BROKEN: addresses("127.0.0.1", "::1"),
    }
    with (
        Authority() as ca,
        dns_server(names) as dns,
        upstream(ca=ca, names=(ONE, BROKEN)) as one,
        upstream(ca=ca, names=(TWO,), alpn=("h2", "http/1.1")) as two,
        upstream(ca=ca, names=(SIX,), address="::1") as six,
        upstream(names=(ONE,)) as plain,
    ):
        allow = [
            rule(ONE, port=one.port, websocket=True),
            rule(TWO, port=two.port),
            rule(SIX, port=six.port),
            rule(BROKEN, port=one.port),
            rule(ONE, port=plain.port, protocol="http"),
        ]
        config = configuration(
            allow=allow,
            dns=dns,
            ca=ca,
            credentials={
                "unused": {
                    "source": {"env": "UNUSED_KEY"},
                    "for": [{"host": ONE}],
                    "place": {"header": "X-Api-Key", "format": "{secret}"},
                    "placeholder": {"shape": "generic", "env": "UNUSED"},
                }
            },
        )
        config["policies"]["default"]["allow"][0]["credential"] = "unused"
        with gate(config, env={"UNUSED_KEY": "uU7-another-long-secret-value-0123"}) as running:
            session = running.session(credentials=["unused"])
            world = World(running, session, one, two, six, plain, dns)
            # Two visits teach the gate what the upstream speaks; from then on h2 clients get h2.
            for _ in range(2):
                world.get("h2", f"https://{TWO}:{two.port}/echo")
            yield world


@pytest.fixture(params=["h1", "h2"])
def client(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["h1", "h2"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def url(world: World, kind: str, path: str) -> str:
    server = world.server(kind)
    return f"https://{server.names[0]}:{server.port}{path}"


def test_get(world: World, client: str, kind: str) -> None:
    echo = json.loads(world.get(client, url(world, kind, "/echo?a=1")))
    assert echo["method"] == "GET"
    assert echo["target"] == "/echo?a=1"


def test_the_client_gets_http2_where_the_upstream_speaks_it(world: World) -> None:
    version = world.get("h2", url(world, "h2", "/echo"), "-o", "/dev/null", "-w", "%{http_version}")
    assert version == b"2"


def test_head_has_the_length_and_no_body(world: World, client: str, kind: str) -> None:
    head = world.get(client, url(world, kind, "/bytes/5000"), "-I").lower()
    assert b"content-length: 5000" in head


def test_post_of_one_mib(world: World, client: str, kind: str) -> None:
    body = bytes(range(256)) * 4096
    echo = json.loads(world.get(client, url(world, kind, "/echo"), "--data-binary", "@-", input=body))
    assert echo["length"] == len(body)


def test_chunked_upload(world: World, client: str, kind: str) -> None:
    body = b"x" * 300_000
    arguments = ["-X", "POST", "-H", "Transfer-Encoding: chunked"] if client == "h1" else ["-X", "POST"]
    echo = json.loads(world.get(client, url(world, kind, "/echo"), *arguments, "-T", "-", input=body))
    assert echo["length"] == len(body)


def test_chunked_reply(world: World, client: str, kind: str) -> None:
    assert len(world.get(client, url(world, kind, "/chunked/150000"))) == 150_000


def test_download_of_20_mib(world: World, client: str, kind: str) -> None:
    size = world.get(client, url(world, kind, "/download"), "-o", "/dev/null", "-w", "%{size_download}")
    assert int(size) == 20 * 1024 * 1024


def test_range(world: World, client: str, kind: str) -> None:
    whole = world.get(client, url(world, kind, "/bytes/1000"))
    assert world.get(client, url(world, kind, "/bytes/1000"), "-r", "100-199") == whole[100:200]


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
def test_a_coded_reply_arrives_whole(world: World, client: str, coding: str) -> None:
    coded = world.get(client, url(world, "h1", f"/coded/{coding}"))
    if coding == "gzip":  # its header holds the time
        assert gzip.decompress(coded) == payload(10_000)
    else:
        assert coded == encode(coding, payload(10_000))


def test_expect_100_continue(world: World, client: str, kind: str) -> None:
    body = b"y" * 200_000
    echo = json.loads(
        world.get(client, url(world, kind, "/echo"), "-H", "Expect: 100-continue", "--data-binary", "@-", input=body)
    )
    assert echo["length"] == len(body)
    assert not [name for name, _ in echo["headers"] if name.lower() == "expect"]


def test_reply_without_a_length(world: World, client: str) -> None:
    assert len(world.get(client, url(world, "h1", "/close/70000"))) == 70_000


@pytest.mark.parametrize("status", [204, 304, 404, 500])
def test_status_is_passed_on(world: World, client: str, kind: str, status: int) -> None:
    arguments = ["-o", "/dev/null", "-w", "%{http_code}"]
    assert world.get(client, url(world, kind, f"/status/{status}"), *arguments) == str(status).encode()


def test_early_hints_do_not_disturb(world: World, client: str, kind: str) -> None:
    assert world.get(client, url(world, kind, "/early")) == b"after a hint\n"


def test_response_trailers_are_dropped_and_the_body_is_intact(world: World, client: str, kind: str) -> None:
    assert world.get(client, url(world, kind, "/trailers")) == b"body\n"


@pytest.mark.parametrize("kind", ["h1", "h2"], ids=str)
def test_ten_requests_in_one_tunnel_use_at_most_two_upstream_connections(world: World, client: str, kind: str) -> None:
    world.server(kind).reset()
    urls = [url(world, kind, f"/bytes/{1000 + n}") for n in range(10)]
    out = [part for n in range(10) for part in ("-o", "/dev/null")]
    flag = {"h1": "--http1.1", "h2": "--http2"}[client]
    done = world.curl(flag, *out, *urls)
    assert done.returncode == 0, done.stderr
    assert len(world.server(kind).requests) == 10
    assert world.server(kind).connections <= 2


def test_twenty_requests_in_parallel(world: World, client: str, kind: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        sizes = list(pool.map(lambda n: len(world.get(client, url(world, kind, f"/bytes/{5000 + n}"))), range(20)))
    assert sizes == [5000 + n for n in range(20)]


def test_twenty_streams_in_parallel_on_one_connection(world: World) -> None:
    ca = world.gate.state / "ca.pem"
    with tunnel(world.gate, TWO, world.two.port, token=world.session.token, ca=ca, alpn=("h2", "http/1.1")) as raw:
        h2 = H2Client(raw)
        authority = f"{TWO}:{world.two.port}"
        streams = [h2.begin("GET", f"/bytes/{n + 1}", authority=authority) for n in range(20)]
        assert [len(h2.reply(stream).body) for stream in streams] == [n + 1 for n in range(20)]


def test_server_sent_events_come_one_by_one(world: World, client: str) -> None:
    server = world.one
    server.gate_events()
    flag = {"h1": "--http1.1", "h2": "--http2"}[client]
    process = subprocess.Popen(
        ["curl", "-sSN", "-m", "20", flag, "--cacert", str(world.gate.state / "ca.pem"), "-x", world.session.proxy_url,
         url(world, "h1", "/sse/3")],
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    for _ in range(3):
        server.release_event()
        # The server holds the next event back: what is read here came alone.
        line = process.stdout.readline()
        while not line.startswith(b"data"):
            line = process.stdout.readline()
        process.stdout.readline()
    assert process.wait(10) == 0


def test_websocket(world: World) -> None:
    import wsproto
    from wsproto.events import AcceptConnection, CloseConnection, Message, Request, TextMessage

    ca = world.gate.state / "ca.pem"
    with tunnel(world.gate, ONE, world.one.port, token=world.session.token, ca=ca) as raw:
        ws = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
        raw.send(ws.send(Request(host=f"{ONE}:{world.one.port}", target="/ws")))
        ws.receive_data(raw.read())
        events = list(ws.events())
        assert any(isinstance(event, AcceptConnection) for event in events)
        raw.send(ws.send(Message(data="hello")))
        got: list[str] = []
        while not got:
            ws.receive_data(raw.read())
            got = [event.data for event in ws.events() if isinstance(event, TextMessage)]
        assert got == ["hello"]
        raw.send(ws.send(CloseConnection(code=1000)))
        while not any(isinstance(event, CloseConnection) for event in ws.events()):
            ws.receive_data(raw.read())
    ended = world.gate.wait_audit(type="ws")
    assert ended[-1]["ws"]["host"] == ONE


def test_websocket_without_a_rule_for_it_is_refused(world: World) -> None:
    echo = world.get("h1", url(world, "h2", "/echo"), "-H", "Upgrade: websocket", "-H", "Connection: Upgrade")
    assert not [name for name, _ in json.loads(echo)["headers"] if name.lower() == "upgrade"]


def test_name_with_only_an_ipv6_address(world: World, client: str) -> None:
    assert len(world.get(client, f"https://{SIX}:{world.six.port}/bytes/77")) == 77


def test_ipv6_that_refuses_with_ipv4_that_works(world: World, client: str) -> None:
    # Nothing listens on [::1] at that port.
    assert len(world.get(client, f"https://{BROKEN}:{world.one.port}/bytes/78")) == 78


def test_plain_http(world: World) -> None:
    base = f"http://{ONE}:{world.plain.port}"
    out = [part for n in range(3) for part in ("-o", "/dev/null")]
    done = world.curl("-w", "%{http_code} ", *out, f"{base}/bytes/10", f"{base}/echo", f"{base}/chunked/99999")
    assert done.stdout.strip() == b"200 200 200"


def test_every_request_left_a_decision_and_an_end(world: World) -> None:
    lines = world.gate.wait_audit(type="http", phase="end")
    ends = {line["flow"] for line in lines}
    decisions = {line["flow"] for line in world.gate.audit(type="http", phase="decision")}
    assert ends == decisions
    assert not world.gate.audit(type="fault")
