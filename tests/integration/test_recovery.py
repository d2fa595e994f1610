"""What breaks around the gate: no open door, no lost record, a line that says so, and back without a hand.

Longer than a module should be, since what breaks is broken around one lab.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import wsproto
from wsproto.events import AcceptConnection
from wsproto.events import Request as Handshake

from tests.lab.certs import Authority
from tests.lab.client import RawClient, Refused, connect
from tests.lab.dns import DnsServer, addresses, delayed, dns_server
from tests.lab.gate import Gate, configuration, gate, rule
from tests.lab.http import Request
from tests.lab.upstream import Connection, Upstream, upstream
from tests.lab.visitor import Visitor, bearer, place
from tests.lab.wallclock import wall_clock

API, OTHER, LATE, SOCKET = "api.allowed.test", "other.allowed.test", "late.allowed.test", "ws.allowed.test"
SECRET = "sk-Live-3xR7vQ2mZ9pL5tY8wK1nB4cD6fG0hJ"


@dataclass
class Lab:
    ca: Authority
    dns: DnsServer
    server: Upstream

    def config(self, **more: Any) -> dict[str, Any]:
        allow = [
            rule(API, port=self.server.port, credential="key"),
            rule(OTHER, port=self.server.port),
            rule(LATE, port=self.server.port),
            rule(SOCKET, port=self.server.port, websocket=True),
        ]
        key = {
            "source": {"env": "KEY"},
            "for": [{"host": API}],
            "place": place(),
            "placeholder": {"shape": "generic", "env": "KEY"},
        }
        return configuration(allow=allow, dns=self.dns, ca=self.ca, credentials={"key": key}, **more)

    @contextlib.contextmanager
    def gate(self, config: dict[str, Any] | None = None, **more: Any) -> Iterator[Gate]:
        more["env"] = {"KEY": SECRET, **more.get("env", {})}
        with gate(config or self.config(), **more) as running:
            yield running


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    hosts = (API, OTHER, LATE, SOCKET)
    with (
        Authority() as ca,
        dns_server({name: addresses("127.0.0.1", ttl=0) for name in hosts}) as dns,
        upstream(ca=ca, names=hosts) as server,
    ):
        server.route("/count", count)
        yield Lab(ca, dns, server)


@pytest.fixture(scope="module")
def running(lab: Lab) -> Iterator[Gate]:
    with lab.gate() as one:
        yield one


async def count(connection: Connection, request: Request) -> None:
    """Say a number twenty times a second, 40 times unless the query says another number."""
    await connection.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    for number in range(int(request.query.get("to", "40"))):
        line = f"{number}\n".encode()
        await connection.send(b"%x\r\n%b\r\n" % (len(line), line))
        await asyncio.sleep(0.05)
    await connection.send(b"0\r\n\r\n")


def visit(one: Gate, **more: Any) -> Visitor:
    return Visitor(one, one.session(credentials=["key"], **more))


def begin(visitor: Visitor, server: Upstream, raw: RawClient, host: str = OTHER, to: int = 40) -> None:
    """Start the count and read its head."""
    raw.send(f"GET /count?to={to} HTTP/1.1\r\nHost: {visitor.authority(server, host)}\r\n\r\n".encode())
    assert raw.head().status == 200


def until(condition: Callable[[], Any], *, seconds: float = 8.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)  # another process's doing: nothing here can be waited for
    return value


def process(one: Gate, module: str) -> list[int]:
    """Return the pids below the gate's supervisor that run a module (zygotes' children carry its name too)."""
    found, queue = [], [one.process.pid]
    while queue:
        pid = queue.pop()
        with contextlib.suppress(OSError):
            queue += [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
            if module.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def workers(one: Gate) -> list[int]:
    return [int(worker["pid"]) for worker in one.admin("GET", "/v1/status")[1]["workers"] if worker["ready"]]


def keeper(one: Gate) -> int:
    return process(one, "tidegate.keeper.__main__")[0]


def verified(one: Gate, folder: Path | None = None) -> None:
    done = one.cli(
        "audit", "verify", str(folder or one.state / "audit"), "--key", str(one.state / "audit.pub"), check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def well(one: Gate, server: Upstream) -> bool:
    with contextlib.suppress(OSError, EOFError, Refused, AssertionError):
        return visit(one).get(server, "/bytes/10", host=OTHER).status == 200
    return False


# -- processes that end ---------------------------------------------------------------------------


def test_a_killed_worker_comes_back_and_its_connections_end(lab: Lab, running: Gate) -> None:
    visitor = visit(running)
    with visitor.tunnel(lab.server, OTHER) as raw:
        begin(visitor, lab.server, raw)
        (pid,) = workers(running)
        os.kill(pid, signal.SIGKILL)
        raw.read_all()  # it ends: nothing took it over
    until(lambda: well(running, lab.server))
    running.wait_line("starting it again")
    assert workers(running) != [pid]
    # What it had decided is on record; its death is on the keeper's.
    assert visitor.wait_log(type="http", phase="decision")
    assert running.wait_audit(type="fault")
    assert visitor.get(lab.server, host=OTHER).status == 200  # the session lives on
    verified(running)


def test_a_killed_keeper_that_is_back_in_time_costs_no_flow(lab: Lab, running: Gate) -> None:
    visitor = visit(running)
    token = bearer(visitor.session.placeholder("KEY"))
    with visitor.tunnel(lab.server, OTHER) as raw, visitor.tunnel(lab.server, API) as keyed:
        host = visitor.authority(lab.server, API)
        assert keyed.request("GET", "/echo", host=host, headers=[token]).status == 200
        begin(visitor, lab.server, raw)
        old = keeper(running)
        os.kill(old, signal.SIGKILL)
        # What runs, runs on; also a new request on what is lent already.
        assert keyed.request("GET", "/echo", host=host, headers=[token]).status == 200
        assert lab.server.requests[-1].header("authorization") == f"Bearer {SECRET}"
        said = raw.until(b"0\r\n\r\n")
        assert b"39\n" in said
    until(lambda: process(running, "tidegate.keeper.__main__") not in ([], [old]))
    until(lambda: well(running, lab.server))
    assert visitor.get(lab.server, host=API, headers=[token]).status == 200
    verified(running)


def test_a_keeper_that_is_away_stops_everything_and_then_nothing(lab: Lab, running: Gate) -> None:
    visitor = visit(running)
    pid = keeper(running)
    with ThreadPoolExecutor(1) as pool, visitor.tunnel(lab.server, OTHER) as raw:
        begin(visitor, lab.server, raw, to=600)
        os.kill(pid, signal.SIGSTOP)
        readiness = pool.submit(running.admin, "GET", "/readyz", timeout=15)
        try:
            begun = time.monotonic()
            raw.sock.settimeout(12)
            while raw.read():
                pass
            assert 3 < time.monotonic() - begun < 11
            lab.server.reset()
            refused = until(lambda: refusal(visitor, lab.server))
            assert (refused.status, refused.reason) == (503, "keeper_unavailable")
            assert lab.server.bytes_in == 0
            assert readiness.result()[0] == 503
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    until(lambda: well(running, lab.server))
    assert visitor.wait_log(type="conn", phase="end")
    until(lambda: running.admin("GET", "/readyz")[0] == 200)


def refusal(visitor: Visitor, server: Upstream) -> Any:
    with contextlib.suppress(OSError, EOFError):
        try:
            with visitor.tunnel(server, OTHER):
                return None
        except Refused as refused:
            return refused.reply
    return None


def test_V_14_a_killed_supervisor_takes_all_along_and_nothing_is_open(lab: Lab) -> None:
    with lab.gate() as one:
        visitor = visit(one)
        with visitor.tunnel(lab.server, OTHER) as raw:
            begin(visitor, lab.server, raw, to=600)
            pids = [*process(one, "tidegate"), one.process.pid]
            one.process.kill()
            raw.read_all()
        until(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in pids if pid != one.process.pid))
        with pytest.raises(OSError), connect(one):  # noqa: PT011 - refused, or reset
            pass


def test_V_13_sigterm_lets_what_runs_finish_and_each_has_one_end(lab: Lab) -> None:
    with lab.gate() as one:
        visitor = visit(one)
        with visitor.tunnel(lab.server, OTHER) as raw, visitor.tunnel(lab.server, OTHER) as idle:
            begin(visitor, lab.server, raw, to=15)
            one.process.send_signal(signal.SIGTERM)
            assert idle.closed()
            with pytest.raises((OSError, Refused, EOFError)), visitor.tunnel(lab.server, OTHER) as late:
                late.request("GET", "/echo", host=visitor.authority(lab.server, OTHER))
            said = raw.until(b"0\r\n\r\n")
            assert b"14\n" in said
        assert one.process.wait(15) == 0
        one_end_each(one, visitor)
        verified(one)


def test_V_13_what_does_not_finish_is_cut_at_the_deadline(lab: Lab) -> None:
    with lab.gate(arguments=["--drain-seconds", "1"]) as one:
        visitor = visit(one)
        with visitor.tunnel(lab.server, OTHER) as raw:
            begin(visitor, lab.server, raw, to=600)
            begun = time.monotonic()
            one.process.send_signal(signal.SIGTERM)
            raw.read_all()
            assert one.process.wait(15) == 0
            assert time.monotonic() - begun < 6
        one_end_each(one, visitor)
        verified(one)


def one_end_each(one: Gate, visitor: Visitor) -> None:
    for kind in ("conn", "http"):
        begun = [line["flow"] for line in visitor.log(type=kind, phase="decision")]
        ended = [line["flow"] for line in visitor.log(type=kind, phase="end")]
        assert sorted(begun) == sorted(ended)
        assert len(ended) == len(set(ended))
    assert not one.audit(type="fault")


# -- what is around it ----------------------------------------------------------------------------


def test_V_15_a_dead_resolver_and_its_return(lab: Lab) -> None:
    with dns_server({OTHER: addresses("127.0.0.1", ttl=0)}) as dns:
        port = dns.port
        config = lab.config()
        config["resolver"] = {"servers": [dns.address], "timeout_seconds": 1}
        stack = contextlib.ExitStack()
        one = stack.enter_context(lab.gate(config))
        visitor = visit(one)
        assert visitor.get(lab.server, host=OTHER).status == 200
    with stack:
        lab.server.reset()
        reply = visitor.get(lab.server, host=OTHER)
        assert (reply.status, reply.reason) == (502, "destination_unavailable")
        assert visitor.wait_log(reason="dns_failure")
        assert lab.server.connections == 0
        with dns_server({OTHER: addresses("127.0.0.1", ttl=0)}, port=port):
            until(lambda: visitor.get(lab.server, host=OTHER).status == 200)


@pytest.mark.skipif(os.geteuid() != 0, reason="LOUD: a full disk needs a small tmpfs, and that needs root")
def test_V_09_a_full_disk_denies_and_then_goes_on_by_itself(lab: Lab) -> None:
    folder = Path(tempfile.mkdtemp(prefix="tgd-", dir="/tmp"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m,mode=0755", "tmpfs", str(folder)], check=True)
    try:
        with lab.gate(lab.config(audit={"dir": str(folder / "audit")})) as one:
            (one.state / "audit").symlink_to(folder / "audit")
            visitor = visit(one)
            with visitor.tunnel(lab.server, OTHER) as raw:
                host = visitor.authority(lab.server, OTHER)
                assert raw.request("GET", "/echo", host=host).status == 200
                fill(folder / "filler")
                lab.server.reset()
                # A worker learns of it by its next look at the disk.
                denied = until(lambda: not_ok(raw.request("GET", "/bytes/1", host=host)))
                assert (denied.status, denied.reason) == (503, "audit_unavailable")
            seen = len(lab.server.requests)
            again = visitor.get(lab.server, "/bytes/1", host=OTHER)
            assert (again.status, again.reason) == (503, "audit_unavailable")
            assert len(lab.server.requests) == seen
            until(lambda: one.admin("GET", "/readyz")[0] == 503)
            # Unlogged traffic is what must not be: each request that went out has its decision.
            lines = visitor.log(type="http", phase="decision", verdict="allow")
            assert len(lines) == seen + 1
            (folder / "filler").unlink()
            until(lambda: well(one, lab.server))
            until(lambda: one.admin("GET", "/readyz")[0] == 200)
            assert one.wait_audit(type="fault", reason="audit_unavailable")
            verified(one, folder / "audit")
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
        shutil.rmtree(folder, ignore_errors=True)


def not_ok(reply: Any) -> Any:
    return None if reply.status == 200 else reply


def fill(path: Path) -> None:
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        size = 1 << 20
        while size:
            try:
                file.write(bytes(size))
            except OSError:
                size //= 2


def test_V_12_clock_jumps_change_no_lifetime(lab: Lab) -> None:
    with wall_clock() as clock, lab.gate(env=clock.env) as one:
        visitor = visit(one, ttl_seconds=600)
        token = bearer(visitor.session.placeholder("KEY"))
        with visitor.tunnel(lab.server, OTHER) as raw:
            begin(visitor, lab.server, raw, to=50)
            for jump in (3600, -3600, 86_400, -86_400, 0):
                clock.offset = jump
                reply = visitor.get(lab.server, host=API, headers=[token])
                assert reply.status == 200, (jump, reply.body)
                if jump == 3600:  # the worker looks at its clocks once a second
                    one.wait_audit(type="fault", reason="internal_fault")
            assert lab.server.requests[-1].header("authorization") == f"Bearer {SECRET}"
            assert b"49\n" in raw.until(b"0\r\n\r\n")
        lines = one.audit()
        assert {line["fault"]["name"] for line in lines if line["type"] == "fault"} == {"clock_step"}
        for chain in {line["chain"] for line in lines}:
            clocks = [line["mono_ns"] for line in sorted(lines, key=lambda line: line["seq"]) if line["chain"] == chain]
            assert clocks == sorted(clocks)
        verified(one)


# -- what an operator does ------------------------------------------------------------------------


def test_freeze_and_thaw_reach_live_connections_within_a_second(lab: Lab, running: Gate) -> None:
    visitor = visit(running)
    with visitor.tunnel(lab.server, OTHER) as raw:
        begin(visitor, lab.server, raw, to=30)
        assert running.admin("POST", f"/v1/sessions/{visitor.session.id}/freeze")[0] == 200
        raw.sock.settimeout(1.0)
        deadline = time.monotonic() + 1.0
        with contextlib.suppress(TimeoutError):
            while raw.read():
                assert time.monotonic() < deadline + 0.2, "a frozen session still gets its bytes"
        reply = visitor.get(lab.server, host=OTHER)
        assert (reply.status, reply.reason) == (403, "session_frozen")
        assert running.admin("POST", f"/v1/sessions/{visitor.session.id}/thaw")[0] == 200
        raw.sock.settimeout(10)
        assert b"29\n" in raw.until(b"0\r\n\r\n")
    assert visitor.get(lab.server, host=OTHER).status == 200


@contextlib.contextmanager
def narrowed(lab: Lab, one: Gate, change: Callable[[list[dict[str, Any]]], Any]) -> Iterator[None]:
    """Reload a changed list of rules, and the old one at the end."""
    config = json.loads(json.dumps(lab.config())) | kept(one)
    before = json.loads(json.dumps(config))
    change(config["policies"]["default"]["allow"])
    status, answer = one.reload(config)
    assert status == 200, answer
    try:
        yield
    finally:
        assert one.reload(before)[0] == 200


def kept(one: Gate) -> dict[str, Any]:
    return {"listen": {"http": f"{one.host}:{one.port}"}, "state_dir": str(one.state)}


def drop(host: str) -> Callable[[list[dict[str, Any]]], None]:
    return lambda rules: rules.__setitem__(slice(None), [one for one in rules if one["host"] != host])


def alter(host: str, **change: Any) -> Callable[[list[dict[str, Any]]], None]:
    return lambda rules: [one.update(change) for one in rules if one["host"] == host] and None


NARROW = {
    "rule-gone": drop(OTHER),
    "method-gone": alter(OTHER, methods=["POST"]),
    "path-gone": alter(OTHER, paths=["/other/**"]),
    "addresses-gone": alter(OTHER, addresses=["127.0.0.2/32"]),
}
REFUSED = {
    "rule-gone": "not_in_allowlist",
    "method-gone": "method_not_allowed",
    "path-gone": "path_not_allowed",
    "addresses-gone": "destination_unavailable",
}


@pytest.mark.parametrize("change", list(NARROW))
def test_a_narrowing_reload_ends_what_it_would_not_begin(lab: Lab, running: Gate, change: str) -> None:
    visitor = visit(running)
    with visitor.tunnel(lab.server, OTHER) as raw, visitor.tunnel(lab.server, API) as other:
        begin(visitor, lab.server, raw, to=600)
        begun = time.monotonic()
        with narrowed(lab, running, NARROW[change]):
            raw.sock.settimeout(5)
            while raw.read():
                pass
            assert time.monotonic() - begun < 2.0
            denied = visitor.get(lab.server, "/count", host=OTHER)
            assert denied.reason == REFUSED[change]
            # What the change is not about goes on.
            assert other.request("GET", "/bytes/1", host=visitor.authority(lab.server, API)).status == 200
    assert visitor.get(lab.server, host=OTHER).status == 200


def test_a_narrowing_reload_ends_an_idle_tunnel_and_a_web_socket(lab: Lab, running: Gate) -> None:
    visitor = visit(running)
    authority = visitor.authority(lab.server, SOCKET)
    with visitor.tunnel(lab.server, SOCKET) as idle, visitor.tunnel(lab.server, SOCKET) as raw:
        ws = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
        raw.send(ws.send(Handshake(host=authority, target="/ws")))
        ws.receive_data(raw.read())
        assert any(isinstance(event, AcceptConnection) for event in ws.events())
        with narrowed(lab, running, alter(SOCKET, websocket=False)):
            raw.sock.settimeout(2)
            assert raw.closed()
            assert idle.request("GET", "/bytes/1", host=authority).status == 200  # still allowed
        with narrowed(lab, running, drop(SOCKET)):
            idle.sock.settimeout(2)
            assert idle.closed()


def test_a_request_that_waits_is_judged_by_the_policy_of_its_end(lab: Lab, running: Gate) -> None:
    visitor = visit(running)
    lab.dns.set(LATE, delayed(1.5, addresses("127.0.0.1", ttl=0)))
    lab.server.reset()
    asked = lab.dns.count(LATE)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(quietly, visitor, lab.server)
        until(lambda: lab.dns.count(LATE) > asked)
        with narrowed(lab, running, alter(LATE, methods=["POST"])):
            reply = waiting.result()
    assert reply is None or reply.status == 403
    assert not lab.server.requests


def quietly(visitor: Visitor, server: Upstream) -> Any:
    with contextlib.suppress(OSError, EOFError):
        return visitor.get(server, host=LATE)
    return None


@pytest.mark.parametrize(
    "bad",
    ["policies: [", "version: 1\nunknown: 1\n", "version: 1\npolicies: {default: {allow: [{host: '*'}]}}\n", ""],
    ids=["syntax", "unknown-key", "bad-rule", "empty"],
)
def test_a_bad_reload_keeps_the_old_and_says_so(lab: Lab, running: Gate, bad: str) -> None:
    visitor = visit(running)
    good = running.config_file.read_text()
    with visitor.tunnel(lab.server, OTHER) as raw:
        host = visitor.authority(lab.server, OTHER)
        assert raw.request("GET", "/echo", host=host).status == 200
        try:
            status, answer = running.reload(bad)
            assert status >= 400
            assert answer
            running.wait_line("the old configuration stays in force")
            assert raw.request("GET", "/echo", host=host).status == 200
            assert running.admin("GET", "/readyz")[0] == 200
        finally:
            assert running.reload(good)[0] == 200


def test_the_log_of_all_that_is_whole(running: Gate) -> None:
    verified(running)
    assert "Traceback" not in running.stderr
    assert SECRET not in running.stderr + json.dumps(running.audit())
