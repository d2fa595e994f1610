"""The wall's watch, live: what is dropped comes on record; what is wrong, or silence, keeps the gate from being ready.

Real rules, the kernel's own packet log, a process with one capability.
Longer than a module should be, since all of it is asked of one wall and one gate.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.lab import inside
from tests.lab.gate import Gate, configuration, environment, gate, tidegate_command
from tests.lab.world import Leg, World, leg, why_no_world, world

pytestmark = pytest.mark.skipif(why_no_world() is not None, reason=f"no namespaces: {why_no_world()}")

FAR = "198.51.100.7"
_SEND = """
import socket, sys
with socket.socket(socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET, socket.SOCK_DGRAM) as sock:
    for _ in range(int(sys.argv[3])):
        sock.sendto(b"secret", (sys.argv[1], int(sys.argv[2])))
"""


@dataclass
class Post:
    place: World
    gate: Gate
    leg: Leg
    config: dict[str, Any]

    def wall(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return inside.wall(self.place, *arguments)

    def up(self) -> None:
        each = [word for address in self.leg.own for word in ("--sandbox", address)]
        done = self.wall("up", "--device", self.leg.device, *each, "--config", str(self.gate.config_file))
        assert done.returncode == 0, done.stderr

    @contextlib.contextmanager
    def watch(self, *more: str) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            [*self.place.gate_prefix, *tidegate_command("wall", "watch", "--sandbox", self.leg.own[0], *more),
             "--config", str(self.gate.config_file), "--state-dir", str(self.gate.state)],
            stderr=subprocess.PIPE, text=True, env=environment(),
        )  # fmt: skip
        try:
            assert process.stderr is not None
            assert "watching" in process.stderr.readline()
            self.until(lambda: self.problems() == [])
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            process.wait(10)

    def problems(self) -> list[str]:
        status, body = self.gate.admin("GET", "/readyz")
        problems: list[str] = body["problems"]
        assert (status == 200) is not bool(problems)
        return problems

    def send(self, address: str, port: int, count: int = 1) -> None:
        command = [*self.leg.prefix, sys.executable, "-c", _SEND, address, str(port), str(count)]
        subprocess.run(command, check=True, timeout=20)

    def until(self, holds: Callable[[], bool], seconds: float = 10) -> float:
        """Wait until it holds; return how long that took."""
        begun = time.monotonic()
        while not holds():
            assert time.monotonic() - begun < seconds, self.problems()
            time.sleep(0.05)
        return time.monotonic() - begun

    def dropped(self, **wanted: Any) -> list[dict[str, Any]]:
        found = self.gate.audit(type="conn", reason="wall_dropped")
        return [one for one in found if all(one["conn"][key] == value for key, value in wanted.items())]


@pytest.fixture(scope="module")
def post() -> Iterator[Post]:
    with posted() as made:
        yield made


@contextlib.contextmanager
def posted() -> Iterator[Post]:
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(world())
        here = stack.enter_context(leg(place, 0))
        config = configuration(
            listen={
                "dns": [f"{here.gate[0]}:53", f"[{here.gate[1]}]:53"],
                "transparent": [f"{here.gate[0]}:8443", f"[{here.gate[1]}]:8443"],
            },
            sessions={
                "agent": {"policy": "default", "from": f"{here.own[0]}/32"},
                "other": {"policy": "default", "from": "10.78.99.2/32"},
            },
            wall={"watch": "required"},
        )
        running = stack.enter_context(gate(config, prefix=place.gate_prefix))
        made = Post(place, running, here, config)
        made.up()
        yield made


def test_without_the_watch_that_is_required_the_gate_is_not_ready(post: Post) -> None:
    assert post.problems() == ["nobody watches the wall of leg0 (wall.watch is required): tidegate wall watch"]
    with post.watch():
        assert post.problems() == []
    assert post.until(lambda: bool(post.problems())) < 2, "it says farewell"
    assert not post.gate.audit(type="incident", reason="wall_watch_silent")


def test_it_keeps_one_capability_and_gains_none(post: Post) -> None:
    with post.watch() as process:
        status = Path(f"/proc/{process.pid}/status").read_text()
    lines = dict(line.split(":\t", 1) for line in status.splitlines())
    only = 1 << 12
    assert {int(lines[name], 16) for name in ("CapEff", "CapPrm", "CapBnd")} == {only}
    assert {int(lines[name], 16) for name in ("CapInh", "CapAmb")} == {0}
    assert lines["NoNewPrivs"] == "1"


@pytest.fixture(scope="class")
def watched(post: Post) -> Iterator[None]:
    with post.watch():
        yield


@pytest.mark.usefixtures("watched")
class TestWatched:
    """One watch for all of these."""

    @pytest.mark.parametrize(
        ("address", "port"), [(FAR, 443), (FAR, 123), ("224.0.0.251", 5353), ("2001:db8::7", 443)], ids=str
    )
    def test_P_27_a_datagram_that_was_dropped_is_a_record(self, post: Post, address: str, port: int) -> None:
        before = len(post.dropped(address=address, port=port))
        post.send(address, port)
        post.until(lambda: len(post.dropped(address=address, port=port)) > before)
        record = post.dropped(address=address, port=port)[-1]
        six = ":" in address
        assert record["conn"]["transport"] == "udp"
        assert record["conn"]["client"] == post.leg.own[six]
        assert record["session"] == (None if six else "agent")
        assert (record["verdict"], record["phase"]) == ("deny", "event")
        assert record["rule"] == f"{post.leg.device}: everything else"

    def test_icmp_and_another_source_are_records(self, post: Post) -> None:
        subprocess.run(["ip", "-n", post.leg.space, "address", "add", "10.78.9.9/32", "dev", "eth0"], check=True)
        try:
            _raw(post)
        finally:
            subprocess.run(["ip", "-n", post.leg.space, "address", "del", "10.78.9.9/32", "dev", "eth0"], check=True)
        post.until(lambda: bool(post.dropped(transport="icmp", address=FAR)))
        post.until(lambda: bool(post.dropped(client="10.78.9.9")))
        assert post.dropped(client="10.78.9.9")[-1]["rule"].endswith("another source")

    def test_a_flood_is_counted_to_the_last_packet(self, post: Post) -> None:
        """The kernel logs twenty a second; the rest is known by the counters."""

        def total() -> int:
            # By its rule: what the sandbox's kernel says to its neighbours by itself is dropped by another one.
            of_rule = [one for one in post.dropped() if one["rule"].endswith("everything else")]
            return sum(one.get("count") or 1 for one in of_rule)

        time.sleep(2.5)  # neighbour discovery of the start has come in
        before = total()
        post.send(FAR, 9999, 400)
        post.until(lambda: total() - before >= 400)
        time.sleep(2.5)
        assert total() - before == 400
        assert len(post.dropped(port=9999)) < 60

    @pytest.mark.parametrize(
        ("damage", "told"),
        [
            pytest.param("nft flush chain inet tidegate-leg0 closed", "missing: rule 'everything else'", id="flushed"),
            pytest.param(
                "nft delete table netdev tidegate-leg0", "missing: table netdev tidegate-leg0", id="table gone"
            ),
            pytest.param("sysctl -qw net.ipv4.ip_forward=1", "net.ipv4.ip_forward is on", id="forwards"),
            pytest.param(
                "nft insert rule inet tidegate-leg0 closed accept comment hole", "not ours: rule 'hole'", id="hole"
            ),
        ],
    )
    def test_what_is_done_to_the_rules_is_seen_within_five_seconds(self, post: Post, damage: str, told: str) -> None:
        before = len(post.gate.audit(type="incident", reason="wall_broken"))
        subprocess.run([*post.place.gate_prefix, *damage.split()], check=True)
        try:
            assert post.until(lambda: any(told in text for text in post.problems())) < 5
            incidents = post.gate.wait_audit(type="incident", reason="wall_broken")
            assert len(incidents) > before
            assert any(told in one["incident"]["detail"] for one in incidents)
        finally:
            subprocess.run([*post.place.gate_prefix, "sysctl", "-qw", "net.ipv4.ip_forward=0"], check=True)
            post.up()
        assert post.until(lambda: post.problems() == []) < 5


def _raw(post: Post) -> None:
    script = (
        "import socket\n"
        "for source in ('0.0.0.0', '10.78.9.9'):\n"
        "    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as sock:\n"
        "        sock.bind((source, 0))\n"
        f"        sock.sendto(b'\\x08\\x00\\xf7\\xff\\x00\\x00\\x00\\x00', ('{FAR}', 0))\n"
    )
    subprocess.run([*post.leg.prefix, sys.executable, "-c", script], check=True, timeout=20)


def test_a_packet_with_anothers_source_is_nobodys(post: Post) -> None:
    """The rule that dropped it says that the source is a lie: the session of that source is not to answer for it."""
    move = ["ip", "-n", post.leg.space, "address"]
    claimed = post.config["sessions"]["other"]["from"].partition("/")[0]
    subprocess.run([*move, "add", f"{claimed}/32", "dev", "eth0"], check=True)
    try:
        with post.watch():
            script = (
                "import socket, sys\n"
                "with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:\n"
                "    sock.bind((sys.argv[1], 0))\n"
                "    sock.sendto(b'x', (sys.argv[2], 6666))\n"
            )
            subprocess.run([*post.leg.prefix, sys.executable, "-c", script, claimed, FAR], check=True, timeout=20)
            post.until(lambda: bool(post.dropped(port=6666)))
    finally:
        subprocess.run([*move, "del", f"{claimed}/32", "dev", "eth0"], check=True)
    record = post.dropped(port=6666)[-1]
    assert (record["conn"]["client"], record["session"], record["owner"]) == (claimed, None, None)
    assert record["rule"] == f"{post.leg.device}: another source"


def _without(post: Post, *prefix: str) -> subprocess.CompletedProcess[str]:
    up = ("up", "--device", post.leg.device, "--sandbox", post.leg.own[0], "--config", str(post.gate.config_file))
    return subprocess.run(
        [*post.place.gate_prefix, *prefix, *tidegate_command("wall", *up)],
        capture_output=True, text=True, env=environment(), timeout=40, check=False,
    )  # fmt: skip


def test_without_the_right_to_it_no_wall_is_put_up_and_the_one_there_stands(post: Post) -> None:
    told = _without(post, "setpriv", "--bounding-set", "-net_admin", "--inh-caps", "-net_admin")
    assert told.returncode == 1
    assert "CAP_NET_ADMIN" in told.stderr
    assert post.wall("check", "--device", post.leg.device).returncode == 0


def test_without_nft_no_wall_is_put_up_and_what_to_install_is_said(post: Post) -> None:
    hide = "for dir in /usr/sbin /sbin /usr/bin /bin; do [ -e $dir/nft ] && mount --bind /dev/null $dir/nft; done; "
    told = _without(post, "unshare", "--mount", "sh", "-c", hide + 'exec "$@"', "sh")
    assert told.returncode == 1
    assert "there is no nft on this machine" in told.stderr
    assert "install the package nftables" in told.stderr


def test_it_writes_no_file_and_reads_no_secret(post: Post) -> None:
    """Still root by number, as the notes and the gate's socket want; Landlock takes the rest of it."""
    script = (
        "import os, sys\n"
        "from tidegate.cli.wall_watch import give_up_files\n"
        "from tidegate_launcher.wall import nft\n"
        "from tidegate_launcher.privilege import keep_net_admin\n"
        "keep_net_admin()\n"
        "print(give_up_files())\n"
        "for path, flags in (('/etc/shadow', os.O_RDONLY), ('/etc/cron.d/x', os.O_WRONLY | os.O_CREAT), "
        "(sys.argv[1], os.O_RDONLY), ('/run/tidegate/x', os.O_WRONLY | os.O_CREAT)):\n"
        "    try:\n"
        "        os.open(path, flags)\n"
        "        print('opened', path)\n"
        "    except PermissionError:\n"
        "        pass\n"
        "print(len(nft.read().rules('tidegate-leg0')) > 10)\n"
    )
    vault = str(post.gate.state / "keeper" / "store.db")
    done = subprocess.run(
        [*post.place.gate_prefix, sys.executable, "-c", script, vault],
        capture_output=True, text=True, env=environment(), timeout=20, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("\nTrue\n", "")


def test_what_the_gates_user_is_kept_from_is_an_incident(post: Post) -> None:
    config = str(post.gate.config_file)
    assert post.wall("gate", "--config", config).returncode == 0
    try:
        with post.watch("--gate"):
            reach = ["bash", "-c", "for n in 1 2 3; do echo x > /dev/udp/169.254.169.254/80; done"]
            who = ["setpriv", "--reuid", "64732", "--regid", "64732", "--clear-groups"]
            subprocess.run([*post.place.gate_prefix, *who, *reach], check=False, capture_output=True, timeout=20)
            incidents = post.gate.wait_audit(type="incident", reason="gate_user_held")
            assert "169.254.169.254" in incidents[-1]["incident"]["detail"]
            post.until(lambda: bool(post.dropped(address="169.254.169.254")))
            record = post.dropped(address="169.254.169.254")[-1]
            assert (record["session"], record["rule"]) == (None, "the gate's user: metadata ip")
            # IPv6 of the link goes on: neighbour discovery is the kernel's, and nobody's.
            subprocess.run(
                ["ip", "-n", post.place.gate, "-6", "neighbour", "flush", "dev", post.leg.device], check=True
            )
            subprocess.run(["ip", "-n", post.leg.space, "-6", "neighbour", "flush", "dev", "eth0"], check=True)
            dial = [*post.leg.prefix, "bash", "-c", f"exec 3<>/dev/tcp/{post.leg.gate[1]}/53"]
            assert subprocess.run(dial, timeout=5, check=False).returncode == 0
    finally:
        assert post.wall("down", "--gate").returncode == 0


def test_a_link_that_takes_packets_another_way_is_told(post: Post) -> None:
    def ip(*words: str) -> None:
        subprocess.run(["ip", "-n", post.place.gate, *words], check=True)

    def nft(*words: str) -> None:
        subprocess.run([*post.place.gate_prefix, "nft", " ".join(words)], check=True)

    def told(what: str) -> None:
        assert post.until(lambda: any(what in text for text in post.problems())) < 5

    with post.watch():
        ip("link", "add", "br0", "type", "bridge")
        ip("link", "set", post.leg.device, "master", "br0")
        told("part of br0")
        assert "part of br0" in post.wall("check", "--device", post.leg.device).stderr
        ip("link", "del", "br0")
        post.until(lambda: post.problems() == [])
        ip("link", "add", "upon0", "link", post.leg.device, "type", "macvlan")
        told("upon0 stands upon the device")
        ip("link", "del", "upon0")
        post.until(lambda: post.problems() == [])
        chain = f"{{ type filter hook ingress device {post.leg.device} priority -501; }}"
        for table in ("beside", "tidegate-beside"):
            nft(f"add table netdev {table}; add chain netdev {table} first", chain)
            told(f"table netdev {table} takes packets")
            assert post.wall("check", "--device", post.leg.device).returncode == 1
            nft(f"delete table netdev {table}")
            post.until(lambda: post.problems() == [])
        nft("add table ip beside; add chain ip beside first { type filter hook prerouting priority -150; }")
        nft("add rule ip beside first dup to 10.99.0.2 device uplink")
        told("table ip beside (dup) may lead packets past the wall")
        assert post.wall("check", "--device", post.leg.device).returncode == 1
        nft("delete table ip beside")
        post.until(lambda: post.problems() == [])


def test_the_name_of_a_device_is_no_command(post: Post) -> None:
    subprocess.run([*post.place.gate_prefix, "nft", "add table inet victim"], check=True)
    for verb in ("show", "check", "down"):
        done = post.wall(verb, "--device", "leg0; delete table inet victim")
        assert done.returncode == 2
        assert "is no name of a device" in done.stderr
    listed = subprocess.run(
        [*post.place.gate_prefix, "nft", "list", "tables"], capture_output=True, text=True, check=True
    )
    assert "victim" in listed.stdout
    subprocess.run([*post.place.gate_prefix, "nft", "delete table inet victim"], check=True)


@pytest.mark.parametrize(
    "address", ["0.0.0.0", "::", "127.0.0.1", "224.0.0.1", "::ffff:10.0.0.1", "10.78.0.1", "fe80::1", "a.test"]
)
def test_an_address_that_no_sandbox_has_is_refused(post: Post, address: str) -> None:
    config = str(post.gate.config_file)
    done = post.wall("up", "--device", post.leg.device, "--sandbox", address, "--config", config)
    assert done.returncode == 2
    assert "--sandbox" in done.stderr


def test_its_silence_is_an_incident_and_the_gate_is_not_ready(post: Post) -> None:
    with post.watch() as process:
        process.send_signal(signal.SIGSTOP)
        took = post.until(lambda: any("has been silent" in text for text in post.problems()))
        assert 3 < took < 7
        post.until(lambda: bool(post.gate.audit(type="incident", reason="wall_watch_silent")))
        process.send_signal(signal.SIGCONT)
        post.until(lambda: post.problems() == [])


def test_killed_it_is_missed(post: Post) -> None:
    with post.watch() as process:
        os.kill(process.pid, signal.SIGKILL)
        assert post.until(lambda: any("has been silent" in text for text in post.problems())) < 7
    with post.watch():
        pass  # the next one takes its place


def test_a_gate_that_is_away_is_told_when_it_is_back(post: Post) -> None:
    with post.watch():
        socket_ = post.gate.state / "wall.sock"
        aside = socket_.with_suffix(".aside")
        socket_.rename(aside)
        post.send(FAR, 7777)
        time.sleep(1.5)
        aside.rename(socket_)
        post.until(lambda: bool(post.dropped(port=7777)))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--device", "nothing0"), "no wall was put up here as tidegate-nothing0"),
        ((), "give --device, --sandbox, --gate or --shared"),
    ],
)
def test_what_cannot_be_watched_is_told(post: Post, arguments: tuple[str, ...], told: str) -> None:
    done = post.wall("watch", *arguments)
    assert done.returncode in (1, 2)
    assert told in done.stderr


def test_two_cannot_watch_one_namespace(post: Post) -> None:
    with post.watch():
        done = post.wall("watch", "--device", post.leg.device, "--state-dir", str(post.gate.state))
        assert done.returncode == 1
        assert "the kernel's packet log cannot be read" in done.stderr
        assert "another `tidegate wall watch` may run here already" in done.stderr


def test_a_link_that_is_made_anew_under_its_name_is_an_incident_until_its_wall_is_put_up() -> None:
    with posted() as post, post.watch():
        names = {"near": post.leg.device, "space": post.leg.space, "own": post.leg.own[0], "gate": post.leg.gate[0]}
        anew = (
            "ip link del {near}; ip link add {near} type veth peer name eth0 netns {space}; "
            "ip address add {gate}/30 dev {near}; ip link set {near} up; "
            "ip -n {space} address add {own}/30 dev eth0; ip -n {space} link set eth0 up"
        )
        subprocess.run(["ip", "netns", "exec", post.place.gate, "sh", "-ec", anew.format(**names)], check=True)
        assert post.until(lambda: any("another device of the same name" in text for text in post.problems())) < 5
        incidents = post.gate.wait_audit(type="incident", reason="wall_broken")
        assert "another device of the same name" in incidents[-1]["incident"]["detail"]
