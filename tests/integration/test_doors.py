"""Doors: who comes by one is its session, and the launcher's connection is the lease; with a real gate and clients.

Longer than a module should be, since all of it is asked of one gate.
"""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.lab import inside
from tests.lab.certs import Authority
from tests.lab.client import Endpoint, RawClient, RawReply, connect, fetch, proxy_header, tunnel
from tests.lab.dns import addresses, dns_server
from tests.lab.doors import Place, dns_door, landing, launcher, tcp_door, unix_door, within
from tests.lab.gate import Gate, configuration, gate, rule
from tests.lab.http import Reply, Request
from tests.lab.upstream import Connection, Upstream, says, upstream
from tests.lab.world import CLIENT, GATE, World, why_no_world, world
from tidegate.errors import LaunchError
from tidegate.session.call import ToolCall
from tidegate_launcher.lease import Ask, Lease

pytestmark = pytest.mark.skipif(why_no_world() is not None, reason=f"no namespaces: {why_no_world()}")

API, OTHER = "api.allowed.test", "other.allowed.test"
SECRET = "ghp_" + "R4nd0mSecretOfTheOperator0123456789ab"[:36]
WHOLE = Ask(policy="default")
NOWHERE = b"GET http://nowhere.test/ HTTP/1.1\r\nHost: nowhere.test\r\n\r\n"
GATE_6 = "fd77::1"
# Its own, so that several runs of these tests have the port that clients dial by themselves.
HOME = f"127.{os.getpid() % 200 + 20}.{os.getpid() // 200 % 250 + 1}.9"


async def endless(_: Connection, request: Request) -> Reply:
    async def ticks() -> AsyncIterator[bytes]:
        for _ in range(600):
            yield b"tick"
            await asyncio.sleep(0.05)

    return Reply(200, [], ticks(), framing="chunked")


async def told(_: Connection, request: Request) -> Reply:
    value = next((value for name, value in request.headers if name.lower() == b"authorization"), b"none")
    return Reply(200, [], b"secret" if SECRET.encode() in value else value)


@dataclass
class Stage:
    gate: Gate
    server: Upstream

    def get(self, place: Endpoint, path: str = "/hi", *, token: str | None = None, **more: Any) -> RawReply:
        return fetch(place, API, 443, path, token=token, ca=self.gate.state / "ca.pem", **more)


@pytest.fixture(scope="module")
def room() -> Iterator[str]:
    with landing() as name:
        yield name


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    routes = {"/hi": says(b"hello"), "/endless": endless, "/told": told}
    with (
        Authority() as ca,
        dns_server({name: addresses(HOME) for name in (API, OTHER)}) as dns,
        upstream(ca=ca, names=(API, OTHER), address=HOME, port=443, routes=routes) as server,
    ):
        config = configuration(
            allow=[rule(API, credential="github"), rule("*.wide.test"), rule(OTHER, paths=["/never"])],
            policy={"budgets": {"session": {"distinct_names_per_hour": 2}}},
            credentials={
                "github": {
                    "source": {"env": "GITHUB"},
                    "for": [{"host": API}],
                    "place": {"header": "Authorization", "format": "Bearer {secret}"},
                    "placeholder": {"shape": "github", "env": "GITHUB_TOKEN"},
                }
            },
            dns=dns,
            ca=ca,
            limits={"connections_per_session": 8},
        )
        config["policies"]["narrow"] = {"allow": [rule(API, paths=["/hi"])]}
        config["workers"] = 2
        with gate(config, env={"GITHUB": SECRET}) as running:
            yield Stage(running, server)


def refused_within(seconds: float, place: Place) -> bool:
    """Tell whether a place lets nobody in within that time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            with connect(place, timeout=1):
                pass
        except OSError:
            return True
    return False


def sessions(running: Gate) -> set[str]:
    return {view["id"] for view in running.admin("GET", "/v1/sessions")[1]["sessions"]}


# -- who comes by a door ---------------------------------------------------------------------------


def test_who_comes_by_a_tcp_door_needs_no_token(stage: Stage, room: str) -> None:
    with tcp_door(room) as (door, place), Lease.open(stage.gate.state, WHOLE, [door]) as lease:
        proxy = f"http://127.0.0.1:{place.port}"
        assert lease.environment["HTTP_PROXY"] == proxy
        done = inside.curl(
            ["ip", "netns", "exec", room], stage.gate.state / "ca.pem", f"https://{API}/hi", "--proxy", proxy
        )
        assert (done.returncode, done.stdout) == (0, "hello"), done.stderr
        record = stage.gate.wait_audit(type="http", phase="end", session=lease.id)[-1]
    assert (record["verdict"], record["http"]["host"]) == ("allow", API)


def test_who_comes_by_a_unix_door_needs_no_token(stage: Stage, room: str) -> None:
    with unix_door() as (door, place), Lease.open(stage.gate.state, WHOLE, [door]) as lease:
        assert stage.get(place).body == b"hello"
        assert lease.environment["HTTP_PROXY"] == "http://127.0.0.1:3128"
        record = stage.gate.wait_audit(type="conn", phase="end", session=lease.id)[-1]
    assert record["conn"]["client"] == "unix"


def test_a_unix_door_by_name_takes_the_port_that_clients_dial(stage: Stage, room: str) -> None:
    with (
        unix_door("tls", 443) as (door, place),
        Lease.open(stage.gate.state, WHOLE, [door]),
        connect(place) as client,
    ):
        client.start_tls(API, ca=stage.gate.state / "ca.pem")
        assert client.request("GET", "/hi", host=API).body == b"hello"


def test_a_session_gets_its_environment_its_certificates_and_its_names(stage: Stage, room: str) -> None:
    ask = Ask(policy="default", credentials=("github",), names=True)
    with tcp_door(room) as (door, _), Lease.open(stage.gate.state, ask, [door]) as lease:
        assert lease.names == (API, OTHER)
        assert lease.environment["GITHUB_TOKEN"].startswith("gh")
        assert lease.environment["SSL_CERT_FILE"] == "/tidegate/bundle.pem"
        assert lease.files["ca.pem"] == (stage.gate.state / "ca.pem").read_bytes()
        assert lease.files["ca.pem"] in lease.files["bundle.pem"]


def test_a_door_of_a_session_with_a_credential_puts_it_on_the_wire(stage: Stage, room: str) -> None:
    ask = Ask(policy="default", credentials=("github",))
    with tcp_door(room) as (door, place), Lease.open(stage.gate.state, ask, [door]) as lease:
        held = [("Authorization", f"Bearer {lease.environment['GITHUB_TOKEN']}")]
        assert stage.get(place, "/told", headers=held).body == b"secret"


def test_two_doors_never_mix_their_sessions(stage: Stage, room: str) -> None:
    ask = Ask(policy="default", credentials=("github",))
    with (
        tcp_door(room) as (first, here),
        unix_door() as (second, there),
        Lease.open(stage.gate.state, ask, [first]) as one,
        Lease.open(stage.gate.state, ask, [second]) as two,
    ):
        for place, own, others in ((here, one, two), (there, two, one)):
            for _ in range(4):
                held = [("Authorization", f"Bearer {own.environment['GITHUB_TOKEN']}")]
                assert stage.get(place, "/told", headers=held).body == b"secret"
                alien = [("Authorization", f"Bearer {others.environment['GITHUB_TOKEN']}")]
                assert stage.get(place, "/told", headers=alien).reason == "unknown_placeholder"
        for own in (one, two):
            lines = stage.gate.wait_audit(lambda lines: len(lines) >= 8, type="http", phase="end", session=own.id)
            assert len(lines) == 8


def test_the_token_of_another_session_is_refused_at_a_door_and_an_incident(stage: Stage, room: str) -> None:
    other = stage.gate.session()
    with tcp_door(room) as (door, place), Lease.open(stage.gate.state, WHOLE, [door]) as lease:
        assert stage.get(place, token=other.token).reason == "session_invalid"
        assert stage.get(place, token="no.token.atall").reason == "session_invalid"
        assert stage.get(place, token=lease.token).body == b"hello"
        found = stage.gate.wait_audit(type="incident", session=other.id)
        refused = stage.gate.wait_audit(type="conn", phase="decision", session=lease.id, reason="session_invalid")
    assert [line["incident"]["name"] for line in found] == ["session_misplaced"]
    assert len(refused) == 2


def _reason(stage: Stage, place: Place, token: str) -> str | None:
    """Return why a token is refused; None while what came with it is being cut."""
    with contextlib.suppress(EOFError, OSError):
        return stage.get(place, token=token).reason
    return None


def test_a_call_without_doors_is_behind_those_of_its_session_and_nowhere_else(stage: Stage, room: str) -> None:
    with (
        tcp_door(room) as (door, place),
        tcp_door(room) as (second, there),
        Lease.open(stage.gate.state, WHOLE, [door]) as parent,
        Lease.open(stage.gate.state, WHOLE, [second]),
    ):
        ask = msgspec.structs.replace(WHOLE, call=ToolCall.of("shell", "c1", parent=parent.id))
        with Lease.open(stage.gate.state, ask) as call:
            assert stage.get(place, token=call.token).body == b"hello"
            assert stage.get(place).body == b"hello"
            for elsewhere in (there, stage.gate):
                assert stage.get(elsewhere, token=call.token).reason == "session_invalid"
        assert within(3, lambda: call.id not in sessions(stage.gate))
        assert within(3, lambda: _reason(stage, place, call.token) == "session_invalid")
        whose = [
            line["session"] for line in stage.gate.wait_audit(type="http", phase="end") if line["verdict"] == "allow"
        ]
    assert whose[-2:] == [call.id, parent.id]


def test_the_token_of_a_session_with_doors_is_refused_everywhere_else(stage: Stage, room: str) -> None:
    with (
        tcp_door(room) as (door, _),
        tcp_door(room) as (second, there),
        Lease.open(stage.gate.state, WHOLE, [door]) as lease,
        Lease.open(stage.gate.state, WHOLE, [second]),
    ):
        assert stage.get(stage.gate, token=lease.token).reason == "session_invalid"
        assert stage.get(there, token=lease.token).reason == "session_invalid"


def test_one_connection_of_a_door_cannot_change_to_another_session(stage: Stage, room: str) -> None:
    other = stage.gate.session()
    with tcp_door(room) as (door, place), Lease.open(stage.gate.state, WHOLE, [door]), connect(place) as client:
        client.send(NOWHERE)
        assert client.reply().reason == "not_in_allowlist"
        client.send(
            b"GET http://nowhere.test/ HTTP/1.1\r\nHost: nowhere.test\r\n" + proxy_header(other.token) + b"\r\n"
        )
        assert client.reply().reason == "session_invalid"


# -- what holds for every session ------------------------------------------------------------------


def test_connections_of_a_session_are_counted_over_its_doors(stage: Stage, room: str) -> None:
    with tcp_door(room) as (door, place), Lease.open(stage.gate.state, WHOLE, [door]), contextlib.ExitStack() as stack:
        reasons = []
        for _ in range(20):  # two workers, eight each
            client = stack.enter_context(connect(place))
            client.send(NOWHERE)
            reasons.append(client.reply().reason)
    assert set(reasons) == {"not_in_allowlist", "budget"}


def test_budgets_count_for_a_door(stage: Stage, room: str) -> None:
    def reason(place: Place, name: str) -> str | None:
        return fetch(place, name, 443, token=None, ca=stage.gate.state / "ca.pem").reason

    with tcp_door(room) as (door, place), Lease.open(stage.gate.state, WHOLE, [door]):
        assert "budget" not in {reason(place, "a.wide.test"), reason(place, "b.wide.test")}
        assert reason(place, "c.wide.test") == "budget"


def test_a_frozen_session_is_frozen_at_its_doors(stage: Stage, room: str) -> None:
    with tcp_door(room) as (door, place), Lease.open(stage.gate.state, WHOLE, [door]) as lease:
        assert stage.gate.admin("POST", f"/v1/sessions/{lease.id}/freeze")[0] == 200
        assert within(2, lambda: stage.get(place).reason == "session_frozen")
        assert stage.gate.admin("POST", f"/v1/sessions/{lease.id}/thaw")[0] == 200
        assert within(2, lambda: stage.get(place).body == b"hello")


def test_a_reload_judges_what_came_by_a_door_anew(stage: Stage, room: str) -> None:
    before = stage.gate.config_file.read_text()
    other = before.replace("narrow:\n    allow:\n    - host: api.", "narrow:\n    allow:\n    - host: no.")
    assert other != before
    with (
        tcp_door(room) as (door, place),
        Lease.open(stage.gate.state, Ask(policy="narrow"), [door]),
        tunnel(place, API, 443, token=None, ca=stage.gate.state / "ca.pem") as client,
    ):
        assert client.request("GET", "/hi", host=API).body == b"hello"
        try:
            assert stage.gate.reload(other)[0] == 200
            assert client.closed()
            assert stage.get(place).reason == "not_in_allowlist"
        finally:
            assert stage.gate.reload(before)[0] == 200


# -- the connection is the lease -------------------------------------------------------------------


@contextlib.contextmanager
def _live(stage: Stage, place: Place) -> Iterator[RawClient]:
    """A connection by a door with an answer under way."""
    with tunnel(place, API, 443, token=None, ca=stage.gate.state / "ca.pem", timeout=5) as live:
        live.send(f"GET /endless HTTP/1.1\r\nHost: {API}\r\n\r\n".encode())
        assert live.head().status == 200
        yield live


def test_the_end_of_the_lease_closes_the_door_and_what_came_by_it(stage: Stage, room: str) -> None:
    with tcp_door(room) as (door, place):
        lease = Lease.open(stage.gate.state, WHOLE, [door])
        with _live(stage, place) as live, connect(place) as silent:
            lease.close()
            live.read_all()
            assert silent.closed()
        assert refused_within(1, place)
        record = stage.gate.wait_audit(type="conn", phase="end", session=lease.id)[-1]
    assert record["conn"]["end"] == "revoked"
    assert within(1, lambda: lease.id not in sessions(stage.gate))


def test_a_launcher_that_is_killed_leaves_no_session_no_door_and_no_connection(stage: Stage, room: str) -> None:
    with launcher(stage.gate.state, room) as one:
        with _live(stage, one.place) as live:
            begun = time.monotonic()
            os.kill(one.process.pid, signal.SIGKILL)
            live.read_all()
            assert time.monotonic() - begun < 1
        assert refused_within(1, one.place)
        assert within(1, lambda: one.session not in sessions(stage.gate))
        acts = [line["session_event"]["act"] for line in stage.gate.wait_audit(type="session", session=one.session)]
    assert acts[-1] == "revoke"


def test_a_revoked_session_closes_its_doors_though_its_launcher_stays(stage: Stage, room: str) -> None:
    with tcp_door(room) as (door, place), Lease.open(stage.gate.state, WHOLE, [door]) as lease:
        assert stage.get(place).body == b"hello"
        assert stage.gate.admin("DELETE", f"/v1/sessions/{lease.id}")[0] == 200
        assert refused_within(1.5, place)
        lease.record(id="box-1", act="end", outcome="exited")  # what became of it is still put on record


def test_a_session_past_its_time_closes_its_doors(stage: Stage, room: str) -> None:
    ask = Ask(policy="default", ttl_seconds=1.0)
    with tcp_door(room) as (door, place), Lease.open(stage.gate.state, ask, [door]):
        assert stage.get(place).body == b"hello"
        assert refused_within(4, place)


def test_a_worker_that_is_killed_has_a_successor_at_the_doors(stage: Stage, room: str) -> None:
    with tcp_door(room) as (door, place), Lease.open(stage.gate.state, WHOLE, [door]) as lease:
        for worker in stage.gate.admin("GET", "/v1/status")[1]["workers"]:
            os.kill(worker["pid"], signal.SIGKILL)
        assert within(15, lambda: _hello(stage, place))
        assert lease.id in sessions(stage.gate)
        assert within(15, lambda: stage.gate.admin("GET", "/readyz")[0] == 200)


def _hello(stage: Stage, place: Place) -> bool:
    with contextlib.suppress(OSError, EOFError, AssertionError):
        return stage.get(place, timeout=3).body == b"hello"
    return False


def test_a_keeper_that_is_killed_comes_back_with_the_session(stage: Stage, room: str) -> None:
    with tcp_door(room) as (door, place), Lease.open(stage.gate.state, WHOLE, [door]) as lease:
        supervisor = stage.gate.process.pid
        children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
        commands = {int(pid): Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children}
        keeper = next(pid for pid, command in commands.items() if b"tidegate.keeper.__main__" in command)
        os.kill(keeper, signal.SIGKILL)
        assert within(15, lambda: stage.gate.admin("GET", "/readyz")[0] == 200)
        assert within(5, lambda: _hello(stage, place))
        lease.close()
        assert within(2, lambda: lease.id not in sessions(stage.gate))


def test_what_a_killed_gate_left_is_revoked_at_the_next_start(room: str) -> None:
    with gate(configuration()) as first:
        with tcp_door(room) as (door, _):
            lease = Lease.open(first.state, WHOLE, [door])
            first.process.kill()
            first.process.wait(10)
        with pytest.raises(LaunchError, match=r"gone|closed"):
            lease.record(id="box-1", act="end")
        again = subprocess.Popen(
            first.process.args, cwd=first.folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert again.stderr is not None
            assert any("tidegate: ready" in line for line in again.stderr)
            assert first.admin("GET", "/v1/sessions")[1]["sessions"] == []
        finally:
            again.terminate()
            again.wait(15)
            if again.stderr is not None:
                again.stderr.close()


def test_the_gate_takes_its_doors_along(room: str) -> None:
    with tcp_door(room) as (door, place), gate(configuration()) as one:
        with Lease.open(one.state, WHOLE, [door]) as lease:
            one.terminate()
            assert refused_within(1, place)
            with pytest.raises(LaunchError):
                lease.record(id="box-1", act="end")
        ended = [line["session_event"]["act"] for line in one.audit(type="session", session=lease.id)]
    assert ended[-1] == "revoke"


# -- records ---------------------------------------------------------------------------------------


def test_what_a_launcher_tells_stands_on_the_keepers_chain(stage: Stage, room: str) -> None:
    with Lease.open(stage.gate.state, Ask(policy="default", owner="team")) as lease:
        lease.record(id="box-1", act="start", boundary="gvisor", net="veth", image="sha256:" + "0" * 64,
                     argv="python3 \x1b[2J", limits={"memory_bytes": 512.0})  # fmt: skip
        lease.record(id="box-1", act="end", outcome="exited", untrusted_exit_code=7, seconds=1.5, truncated=True)
    begun, ended = stage.gate.wait_audit(lambda lines: len(lines) == 2, type="launch", session=lease.id)
    assert (begun["owner"], begun["chain"].partition("-")[0]) == ("team", "keeper")
    assert begun["launch"]["argv"] == "python3 \\x1b[2J"
    assert begun["launch"]["limits"] == {"memory_bytes": 512.0}
    assert {name: ended["launch"][name] for name in ("outcome", "untrusted_exit_code", "duration_ms", "truncated")} == {
        "outcome": "exited", "untrusted_exit_code": 7, "duration_ms": 1500, "truncated": True,
    }  # fmt: skip
    assert stage.gate.cli("audit", "verify").returncode == 0


def test_descriptors_sent_to_a_door_are_dropped(stage: Stage, room: str) -> None:
    with unix_door() as (door, place), Lease.open(stage.gate.state, WHOLE, [door]):
        left, right = socket.socketpair()
        with left, connect(place) as client:
            socket.send_fds(client.sock, [b"GET http://nowhere.test/ HTTP/1.1\r\n"], [right.fileno()] * 50)
            right.close()
            client.send(b"Host: nowhere.test\r\n\r\n")
            assert client.reply().reason == "not_in_allowlist"
            left.settimeout(2)
            assert left.recv(1) == b""  # nobody holds the other end


# -- doors in other network namespaces -------------------------------------------------------------


@pytest.fixture
def rooms() -> Iterator[tuple[World, World]]:
    """Two sandboxes with the same address, each with a landing of its own; the gate stands in neither."""
    with world() as one, world() as two:
        for room in (one, two):
            subprocess.run(["ip", "-n", room.client, "route", "add", "default", "via", GATE], check=True)
            wall = f"""table inet door {{
                chain nat {{
                    type nat hook prerouting priority dstnat
                    iifname "sandbox" ip daddr {GATE} accept
                    iifname "sandbox" ip6 daddr {GATE_6} accept
                    iifname "sandbox" meta l4proto tcp redirect to :8443
                }}
            }}"""
            subprocess.run([*room.gate_prefix, "nft", "-f", "-"], input=wall, text=True, check=True)
        yield one, two


@contextlib.contextmanager
def landed(stage: Stage, room: World, ask: Ask = WHOLE) -> Iterator[Lease]:
    """A lease with all ways in the room's landing."""
    space = room.gate
    with (
        tcp_door(space, "http", GATE, 8080) as (http, _),
        tcp_door(space, "tls", GATE, 443) as (tls, _),
        tcp_door(space, "transparent", GATE, 8443) as (transparent, _),
        dns_door(space, GATE, 53) as dns,
        Lease.open(stage.gate.state, ask, [http, tls, transparent, dns]) as lease,
    ):
        yield lease


def test_every_way_leads_from_another_network_to_its_session(stage: Stage, rooms: tuple[World, World]) -> None:
    room, ca = rooms[0], stage.gate.state / "ca.pem"
    with landed(stage, room) as lease:
        by_proxy = inside.curl(room.client_prefix, ca, f"https://{API}/hi", "--proxy", lease.environment["HTTP_PROXY"])
        by_name = inside.curl(room.client_prefix, ca, f"https://{API}/hi", "--resolve", f"{API}:443:{GATE}")
        captured = inside.curl(room.client_prefix, ca, f"https://{API}/hi", "--resolve", f"{API}:443:203.0.113.9")
        assert [done.stdout for done in (by_proxy, by_name, captured)] == ["hello"] * 3, captured.stderr
        literal = inside.curl(room.client_prefix, ca, "http://198.41.0.4:8000/")
        assert "ip_literal" in literal.stdout
        for tcp in (False, True):
            assert inside.ask(room.client_prefix, API, server=GATE, tcp=tcp) == ("NOERROR", [GATE])
            assert inside.ask(room.client_prefix, "nowhere.test", server=GATE, tcp=tcp).code == "NXDOMAIN"
        told = stage.gate.wait_audit(lambda lines: len(lines) >= 4, type="conn", phase="decision", session=lease.id)
        assert all(line["conn"]["client"].startswith(f"{CLIENT}:") for line in told)
        assert (told[-1]["conn"]["name"], told[-1]["conn"]["port"]) == ("198.41.0.4", 8000)
        assert len(stage.gate.wait_audit(lambda lines: len(lines) >= 4, type="dns", session=lease.id)) == 4


def test_a_door_of_the_other_family_is_a_door_too(stage: Stage, rooms: tuple[World, World]) -> None:
    room, here = rooms[0], GATE_6
    for space, device, address in ((room.gate, "sandbox", here), (room.client, "eth0", "fd77::2")):
        command = ["ip", "-n", space, "address", "add", f"{address}/126", "dev", device, "nodad"]
        subprocess.run(command, check=True)
    subprocess.run(["ip", "-n", room.client, "route", "add", "default", "via", here], check=True)
    with (
        tcp_door(room.gate, "http", here, 8080) as (http, _),
        tcp_door(room.gate, "transparent", here, 8443) as (transparent, _),
        dns_door(room.gate, here, 53) as dns,
        Lease.open(stage.gate.state, WHOLE, [http, transparent, dns]) as lease,
    ):
        ca, proxy = stage.gate.state / "ca.pem", lease.environment["HTTP_PROXY"]
        assert proxy == f"http://[{here}]:8080"
        assert inside.curl(room.client_prefix, ca, f"https://{API}/hi", "--proxy", proxy).stdout == "hello"
        captured = inside.curl(room.client_prefix, ca, f"https://{API}/hi", "--resolve", f"{API}:443:[2001:db8::9]")
        assert captured.stdout == "hello", captured.stderr
        assert inside.ask(room.client_prefix, API, "AAAA", server=here) == ("NOERROR", [here])


def test_two_sandboxes_of_one_address_are_two_sessions(stage: Stage, rooms: tuple[World, World]) -> None:
    ca = stage.gate.state / "ca.pem"
    with landed(stage, rooms[0]) as wide, landed(stage, rooms[1], Ask(policy="narrow")) as narrow:
        for room, path_reason in ((rooms[0], "none"), (rooms[1], "path_not_allowed")):
            done = inside.curl(room.client_prefix, ca, f"https://{API}/told", "--resolve", f"{API}:443:203.0.113.9")
            assert path_reason in done.stdout
            inside.ask(room.client_prefix, API, server=GATE)
        for lease in (wide, narrow):
            assert len(stage.gate.wait_audit(type="dns", session=lease.id)) == 1
            assert len(stage.gate.wait_audit(type="http", phase="end", session=lease.id)) == 1
