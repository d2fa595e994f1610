"""`tidegate run`, from the command to its end: a real gate, real gVisor, a root of the set-up's.

Longer than a module should be, since all of it is asked of one gate with one image. `test_run_ends` has how launches
are broken off, and what is left of them.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.lab.certs import Authority
from tests.lab.client import fetch
from tests.lab.dns import addresses, dns_server
from tests.lab.doors import within
from tests.lab.gate import configuration, gate, rule
from tests.lab.http import Reply, Request
from tests.lab.launching import Launching, left_by
from tests.lab.roots import why_no_gvisor
from tests.lab.upstream import Connection, Upstream, says, upstream
from tests.unit.launcher.image.making import file, tar
from tidegate_launcher.lease import Ask, Lease

pytestmark = [
    pytest.mark.skipif(why_no_gvisor() is not None, reason=f"no gVisor: {why_no_gvisor()}"),
    pytest.mark.timeout(180),
]

API, OTHER = "api.allowed.test", "other.test"
SECRET = "ghp_" + "R4nd0mSecretOfTheOperator0123456789ab"[:36]
NET = ["--policy", "default"]
# Its own, so that several runs of these tests have the port that clients dial by themselves.
HOME = f"127.{os.getpid() % 200 + 20}.{os.getpid() // 200 % 250 + 1}.11"


async def told(_: Connection, request: Request) -> Reply:
    value = next((value for name, value in request.headers if name.lower() == b"authorization"), b"none")
    return Reply(200, [], b"has the secret" if SECRET.encode() in value else b"has none")


@dataclass
class Stage:
    tool: Launching
    server: Upstream


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    routes = {"/hi": says(b"hello"), "/told": told}
    with (
        Authority() as ca,
        dns_server({name: addresses(HOME) for name in (API, OTHER)}) as dns,
        upstream(ca=ca, names=(API, OTHER), address=HOME, port=443, routes=routes) as server,
    ):
        config = configuration(
            allow=[rule(API, credential="github")],
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
        )
        with gate(config, env={"GITHUB": SECRET}) as running:
            tool = Launching(running)
            tool.import_root()
            yield Stage(tool, server)


@pytest.fixture
def tool(stage: Stage) -> Launching:
    return stage.tool


_TRY = """
import json, os, sys, urllib.error, urllib.request
found = {}
for url in sys.argv[1:]:
    asked = urllib.request.Request(url)
    if "GITHUB_TOKEN" in os.environ:
        asked.add_header("Authorization", "Bearer " + os.environ["GITHUB_TOKEN"])
    try:
        with urllib.request.urlopen(asked, timeout=10) as reply:
            found[url] = [reply.status, reply.read().decode()]
    except urllib.error.HTTPError as refused:
        found[url] = [refused.code, json.loads(refused.read())["reason"]]
    except urllib.error.URLError as fault:
        found[url] = [0, str(fault.reason)]
print(json.dumps(found))
"""
PLAIN = ("env", "-u", "http_proxy", "-u", "https_proxy", "-u", "HTTP_PROXY", "-u", "HTTPS_PROXY", "-u", "ALL_PROXY",
         "-u", "all_proxy")  # fmt: skip
LITERAL, METADATA = "http://198.41.0.4/", "http://169.254.169.254/latest/meta-data/"


def tried(tool: Launching, *urls: str, by: tuple[str, ...] = (), options: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return status and text, or status and reason, of each URL, as code in a sandbox sees it."""
    done = tool.told(*by, "python3", "-c", _TRY, *urls, options=[*NET, *options])
    assert done["untrusted_exit_code"] == 0, done
    return dict(json.loads(done["untrusted_stdout"]))


# -- what it reaches -------------------------------------------------------------------------------


@pytest.mark.parametrize("by", [(), PLAIN], ids=["by its proxy variables", "by name and route"])
def test_code_reaches_what_the_policy_allows_and_is_told_why_not_the_rest(tool: Launching, by: tuple[str, ...]) -> None:
    found = tried(tool, f"https://{API}/hi", LITERAL, METADATA, f"https://{OTHER}/", by=by)
    assert found[f"https://{API}/hi"] == [200, "hello"]
    assert found[LITERAL] == [403, "ip_literal"]
    assert found[METADATA] == [403, "metadata"]
    if by:
        assert found[f"https://{OTHER}/"][0] == 0  # its name is answered to nobody
    else:
        assert found[f"https://{OTHER}/"] == [403, "not_in_allowlist"]


def test_in_a_machine_the_gate_is_the_only_neighbour_too(tool: Launching, tmp_path: Path) -> None:
    found = tried(
        tool, f"https://{API}/hi", f"https://{API}/told", LITERAL, METADATA,
        by=(*PLAIN, "sh", "-c", 'echo "$(cat /in/given)" >result; exec "$@"', "sh"),
        options=("--boundary", "microvm-tcg", "--in", _given(tmp_path), "--out", str(tmp_path / "out"), "--time", "60"),
    )  # fmt: skip
    assert found[f"https://{API}/hi"] == [200, "hello"]
    assert found[f"https://{API}/told"] == [200, "has none"]
    assert [found[url] for url in (LITERAL, METADATA)] == [[403, "ip_literal"], [403, "metadata"]]
    assert (tmp_path / "out" / "result").read_text() == "given\n"
    started = [line["launch"] for line in tool.gate.audit(type="launch") if line["launch"]["act"] == "start"]
    assert (started[-1]["boundary"], started[-1]["net"]) == ("microvm-tcg", "veth")


def _given(folder: Path) -> str:
    (folder / "given").write_text("given\n")
    return str(folder / "given")


@pytest.mark.parametrize("boundary", ["gvisor", "bubblewrap", "runc"])
def test_without_a_network_the_gates_sockets_lead_the_same_way(tool: Launching, boundary: str) -> None:
    options = ("--net", "uds", "--boundary", boundary, *(["--unsafe-boundary"] if boundary == "runc" else []))
    found = tried(
        tool, f"https://{API}/hi", f"https://{API}/told", LITERAL, METADATA, f"https://{OTHER}/", options=options
    )
    assert found[f"https://{API}/hi"] == [200, "hello"]
    assert found[f"https://{API}/told"] == [200, "has none"]
    assert [found[url] for url in (LITERAL, METADATA, f"https://{OTHER}/")] == [
        [403, "ip_literal"], [403, "metadata"], [403, "not_in_allowlist"],
    ]  # fmt: skip


def test_without_a_network_a_name_leads_to_the_gate_too(tool: Launching) -> None:
    found = tried(tool, f"https://{API}/hi", f"https://{OTHER}/", by=PLAIN, options=("--net", "uds"))
    assert found[f"https://{API}/hi"] == [200, "hello"]
    assert found[f"https://{OTHER}/"][0] == 0  # a name of nobody's in its hosts file


def test_no_boundary_is_had_by_who_says_so_alone_and_is_called_one_nowhere(tool: Launching) -> None:
    refused = tool.run("true", options=["--boundary", "none"])
    assert (refused.returncode, refused.stdout) == (125, b"")
    assert b"--unsafe-boundary" in refused.stderr
    done = tool.run("sh", "-c", "exit 7", options=["--boundary", "none", "--unsafe-boundary"])
    assert done.returncode == 7
    assert b"not a boundary against an attacker" in done.stderr
    limited = tool.run("true", options=["--boundary", "none", "--unsafe-boundary", "--memory", "128M"])
    assert limited.returncode == 125
    assert b"cannot enforce a limit on memory" in limited.stderr


def test_runc_is_not_had_by_its_name_alone_and_says_what_it_is(tool: Launching) -> None:
    refused = tool.run("true", options=["--boundary", "runc"])
    assert (refused.returncode, refused.stdout) == (125, b"")
    assert b"runc is not a boundary against an attacker" in refused.stderr
    assert b"--unsafe-boundary" in refused.stderr
    options = ["--boundary", "runc", "--unsafe-boundary", "--memory", "128M", "--pids", "16", "--cpus", "0.5"]
    done = tool.run("sh", "-c", "exit 7", options=options)
    assert done.returncode == 7
    lines = done.stderr.decode().splitlines()
    assert lines[0].endswith("weaker than gvisor: it does not have a kernel of its own between the code and the host's")
    assert lines[1:] == ["tidegate: boundary runc: not a boundary against an attacker"]


def test_in_runc_the_link_leads_to_the_gate_alone_too(tool: Launching) -> None:
    options = ("--boundary", "runc", "--unsafe-boundary")
    found = tried(tool, f"https://{API}/hi", f"https://{API}/told", LITERAL, METADATA, f"https://{OTHER}/",
                  by=PLAIN, options=options)  # fmt: skip
    assert found[f"https://{API}/hi"] == [200, "hello"]
    assert [found[url] for url in (LITERAL, METADATA)] == [[403, "ip_literal"], [403, "metadata"]]
    assert found[f"https://{OTHER}/"][0] == 0
    begun = tool.gate.audit(type="launch")[-2]["launch"]
    assert (begun["act"], begun["boundary"], begun["net"]) == ("start", "runc", "veth")


def test_another_name_at_the_gates_address_is_denied(tool: Launching) -> None:
    code = f"""
import http.client, socket, ssl
context = ssl.create_default_context()
sock = context.wrap_socket(socket.create_connection(("10.77.0.1", 443)), server_hostname="{OTHER}")
sock.sendall(b"GET / HTTP/1.1\\r\\nHost: {OTHER}\\r\\n\\r\\n")
reply = http.client.HTTPResponse(sock)
reply.begin()
print(reply.status, reply.read().decode())
"""
    done = tool.told("python3", "-c", code, options=NET)
    assert done["untrusted_stdout"].startswith("403 "), done
    assert '"not_in_allowlist"' in done["untrusted_stdout"]


def test_without_a_policy_there_is_no_network_and_no_gate_is_asked(tool: Launching) -> None:
    before = len(tool.gate.audit(type="session"))
    done = tool.told("sh", "-c", "cat /proc/net/dev | wc -l; ls /tidegate; cat /proc/net/route; env | grep -i proxy")
    assert "ca.pem" not in done["untrusted_stdout"]
    assert (done["session"], done["dropped"]) == (None, {})
    assert "10.77" not in done["untrusted_stdout"]
    assert "proxy" not in done["untrusted_stdout"].lower()
    assert len(tool.gate.audit(type="session")) == before


def test_what_is_no_tcp_is_dropped_and_counted(tool: Launching) -> None:
    code = "import socket; [socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('203.0.113.9', 443)) for _ in range(7)]"
    done = tool.told("python3", "-c", code, options=NET)
    assert done["outcome"] == "exited"
    assert done["dropped"]["everything else"] == 7
    assert "everything else" not in tool.told("true", options=NET)["dropped"]


def test_what_is_dropped_is_on_the_sessions_record(tool: Launching) -> None:
    code = "import socket; [socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('203.0.113.9', 443)) for _ in range(7)]"
    done = tool.told("python3", "-c", code, options=NET)
    records = tool.gate.audit(session=done["session"], reason="wall_dropped")
    found = {record["rule"]: record.get("count") or 1 for record in records}
    assert found == {f"sandbox: {rule}": packets for rule, packets in done["dropped"].items()}
    assert found["sandbox: everything else"] == 7
    assert {(record["type"], record["verdict"]) for record in records} == {("conn", "deny")}
    shown = tool.gate.cli("log", "--session", done["session"], "--reason", "wall_dropped").stdout
    assert "sandbox: everything else" in shown


def test_what_one_that_is_broken_off_had_dropped_is_on_record_too(tool: Launching) -> None:
    before = len(tool.gate.audit(reason="wall_dropped", rule="sandbox: everything else"))
    code = (
        "import socket, time; socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('203.0.113.9', 443))\n"
        "print('sent', flush=True); time.sleep(60)"
    )
    with tool.started("python3", "-c", code, options=NET) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == b"sent\n"
        launcher.terminate()
        launcher.wait(20)
    after = tool.gate.audit(reason="wall_dropped", rule="sandbox: everything else")
    assert len(after) == before + 1
    end = tool.gate.audit(type="launch", session=after[-1]["session"])[-1]["launch"]
    assert (end["act"], end["outcome"]) == ("end", "interrupted")


def test_S_04_nothing_of_the_machines_own_answers(tool: Launching) -> None:
    """Whatever is dialled, the gate takes it: no listener of the host's is another neighbour."""
    code = """
import socket
for host, port in (("10.77.0.1", 22), ("10.77.0.1", 53), ("127.0.0.1", 8080), ("172.17.0.1", 80), ("10.77.0.1", 5000)):
    try:
        with socket.create_connection((host, port), timeout=5) as sock:
            sock.sendall(b"GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
            sock.shutdown(socket.SHUT_WR)
            print(host, port, sock.recv(200).split(b"\\r\\n")[0])
    except OSError as fault:
        print(host, port, type(fault).__name__)
"""
    lines = tool.told("python3", "-c", code, options=NET)["untrusted_stdout"].splitlines()
    assert len(lines) == 5
    assert "ConnectionRefusedError" in lines[2]  # its own loopback
    for line in lines[:2] + lines[3:]:
        assert "b''" in line or " 403" in line or " 400" in line or line.endswith("Error"), lines


# -- what it is given ------------------------------------------------------------------------------


def test_a_credential_is_a_placeholder_inside_and_the_secret_upstream(stage: Stage) -> None:
    look = (
        "import os; print(os.environ['GITHUB_TOKEN']); print(dict(os.environ)); print(open('/proc/1/environ').read())"
    )
    search = f"grep -rlF {SECRET[:20]} /tidegate /work /tmp /etc /proc/1/environ /proc/self/mountinfo; env"
    credential = ["--credential", "github"]
    seen = stage.tool.told("python3", "-c", look, options=[*NET, *credential])
    placeholder = seen["untrusted_stdout"].splitlines()[0]
    assert placeholder.startswith("ghp_")
    assert placeholder != SECRET
    found = stage.tool.told("sh", "-c", search, options=[*NET, *credential])
    for one in (seen, found):
        assert SECRET not in json.dumps(one)
    assert tried(stage.tool, f"https://{API}/told", options=("--credential", "github")) == {
        f"https://{API}/told": [200, "has the secret"]
    }


def test_S_05_nothing_of_the_launchers_own_environment_is_inside(tool: Launching) -> None:
    done = tool.run(
        "sh", "-c", "env; tr '\\0' '\\n' </proc/1/environ", AWS_SECRET_ACCESS_KEY="x" * 20, SSH_AUTH_SOCK="/s"
    )
    names = {line.partition("=")[0] for line in done.stdout.decode().splitlines()}
    assert names <= {"PATH", "LANG", "HOME", "PWD", "SHLVL", "_"}


def test_variables_are_added_and_never_in_place_of_the_sessions(tool: Launching) -> None:
    done = tool.told("env", options=[*NET, "--env", "MINE=a b", "--env", "HTTPS_PROXY=http://elsewhere:1"])
    lines = done["untrusted_stdout"].splitlines()
    assert "MINE=a b" in lines
    assert "HTTPS_PROXY=http://10.77.0.1:8080" in lines


def test_it_is_nobody_with_nothing_in_a_root_that_is_read_only(tool: Launching) -> None:
    done = tool.told("sh", "-c", "id; grep CapEff /proc/self/status; touch /etc/x; touch /work/y && pwd")
    assert "uid=65534(nobody) gid=65534(nogroup) groups=65534(nogroup)" in done["untrusted_stdout"]
    assert "CapEff:\t0000000000000000\n" in done["untrusted_stdout"]
    assert done["untrusted_stdout"].endswith("/work\n")
    assert "/etc/x" in done["untrusted_stderr"]


# -- how it ends -----------------------------------------------------------------------------------

EAT = "x = bytearray(300 << 20); print(len(x))"


@pytest.mark.parametrize(
    ("argv", "options", "code", "outcome"),
    [
        pytest.param(("sh", "-c", "exit 0"), [], 0, "exited", id="success"),
        pytest.param(("sh", "-c", "exit 7"), [], 7, "exited", id="its own"),
        pytest.param(("sh", "-c", "kill -SEGV $$"), [], 139, "signaled", id="a signal"),
        pytest.param(("sleep", "60"), ["--time", "0.5"], 124, "timeout", id="its time"),
        pytest.param(("python3", "-c", EAT), ["--memory", "64M", "--disk", "8M"], 137, "oom", id="its memory"),
        pytest.param(("yes",), ["--output-bytes", "10K"], 125, "output_limit", id="its output"),
        pytest.param(("no-such-program",), [], 125, "launch_error", id="no such program"),
    ],
)
def test_its_code_is_the_commands_and_ours_are_told_apart(
    tool: Launching, argv: tuple[str, ...], options: list[str], code: int, outcome: str
) -> None:
    assert tool.run(*argv, options=options).returncode == code
    answer = tool.told(*argv, options=options, code=125 if outcome == "launch_error" else 0)
    assert answer["outcome"] == outcome
    assert answer["untrusted_exit_code"] == (code if outcome in ("exited", "signaled") else None)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        pytest.param(["--image", "nothing-of-this-name"], "nothing-of-this-name", id="no such image"),
        pytest.param(["--policy", "nothing-of-this-name"], "nothing-of-this-name", id="no such policy"),
        pytest.param([*NET, "--credential", "nothing"], "nothing", id="no such credential"),
        pytest.param(["--in", "/no/such/file"], "/no/such/file", id="no such input"),
        pytest.param(["--out", "/proc/nowhere/at/all"], "/proc/nowhere", id="no folder for outputs"),
    ],
)
def test_what_cannot_be_launched_is_a_fault_of_ours_in_both_forms(
    tool: Launching, options: list[str], said: str
) -> None:
    done = tool.run("true", options=options)
    assert done.returncode == 125
    assert said in done.stderr.decode()
    assert b"tidegate: error: " in done.stderr
    assert done.stdout == b""
    answer = tool.told("true", options=options, code=125)
    assert answer.keys() == tool.told("true").keys()
    assert (answer["outcome"], answer["id"]) == ("launch_error", None)
    assert said in answer["detail"]


def test_without_a_gate_there_is_no_sandbox_with_a_network(tool: Launching, tmp_path: Path) -> None:
    (tmp_path / "root.tar").write_bytes(tar([file("f", b"x")]))
    tool.gate.cli("image", "import", str(tmp_path / "root.tar"), "--name", "minimal", "--state-dir", str(tmp_path))
    done = tool.run("true", options=[*NET, "--state-dir", str(tmp_path)])
    assert done.returncode == 125
    assert b"tidegate up" in done.stderr


def test_a_command_that_is_no_text_is_refused_in_words(tool: Launching) -> None:
    done = tool.run("echo", os.fsdecode(b"\xff"), options=NET)
    assert done.returncode == 125
    assert b"no UTF-8" in done.stderr
    assert tool.gate.audit(type="launch")[-1]["launch"]["act"] == "refuse"


# -- what it says ----------------------------------------------------------------------------------

EVERY_BYTE = bytes(range(256)) * 40


def test_streams_pass_as_the_bytes_that_they_are(tool: Launching) -> None:
    done = tool.run("sh", "-c", "tee /dev/stderr", stdin=EVERY_BYTE)
    assert (done.returncode, done.stdout, done.stderr) == (0, EVERY_BYTE, EVERY_BYTE)


def test_closed_streams_are_no_reason_not_to_run(tool: Launching) -> None:
    command = ["sh", "-c", 'exec "$@" <&- >&-', "sh", *tool.command("sh", "-c", "cat; echo out; echo err >&2")]
    done = subprocess.run(
        command, env=tool.environment, cwd=tool.gate.folder, stdin=None, capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"err\n")


def test_S_22_escapes_are_inert_in_json(tool: Launching) -> None:
    hostile = b"\x1b]52;c;aGk=\x07\x1b[2J\x9b2J\x1b]8;;http://x\x07\xc2\x9b31m\x1b]0;t\xe2\x80\xae\r\x00end"
    done = tool.run("cat", options=["-o", "json"], stdin=hostile)
    shown = json.loads(done.stdout)["untrusted_stdout"]
    assert all(letter.isprintable() for letter in shown)
    assert shown.startswith("\\x1b]52;c;aGk=\\x07\\x1b[2J\\x9b2J")
    assert shown.endswith("end")
    assert not set(done.stdout) & {0x1B, 0x07, 0x9B, 0x00, 0x0D}


def test_S_23_output_that_looks_like_ours_is_only_output(tool: Launching) -> None:
    forged = '{"outcome": "exited", "untrusted_exit_code": 0, "forged": true}'
    code = f"import sys; print('''{forged}'''); print('''{forged}''', file=sys.stderr); print('\"}}'); sys.exit(9)"
    answer = tool.told("python3", "-c", code)
    assert "forged" not in answer
    assert answer["untrusted_exit_code"] == 9
    assert answer["untrusted_stderr"] == forged + "\n"


_SMALL = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def test_S_21_a_flood_is_cut_and_needs_no_memory_of_ours(tool: Launching) -> None:
    def peak(*argv: str) -> int:
        """Return the most KiB that a process of the launch has had; a small parent's own would count too."""
        command = tool.command(*argv, options=["--output-bytes", "256K"])
        done = subprocess.run(
            [sys.executable, "-S", "-c", _SMALL, *command],
            env=tool.environment,
            capture_output=True,
            timeout=60,
            check=True,
        )
        return int(done.stdout)

    assert peak("sh", "-c", "yes & yes >&2") - peak("true") < 16 * 1024
    done = tool.run("sh", "-c", "yes & yes >&2", options=["--output-bytes", "256K"])
    assert len(done.stdout) <= 256 * 1024
    assert b"output_limit" in done.stderr[-100:]
    answer = tool.told("yes", options=["--output-bytes", "10K"])
    assert (len(answer["untrusted_stdout"]), answer["truncated"]) == (10240, True)


# -- files in and out ------------------------------------------------------------------------------


def test_inputs_are_copies_that_cannot_be_written(tool: Launching, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "one.txt").write_text("one")
    (tmp_path / "tool.sh").write_text("cat /in/data/one.txt; echo two >/in/data/one.txt || exit 3")
    done = tool.run(
        "sh", "/in/tool.sh", options=["--in", str(tmp_path / "data"), "--in", str(tmp_path / "tool.sh")]
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (3, b"one")
    assert (tmp_path / "data" / "one.txt").read_text() == "one"


@pytest.mark.parametrize("what", ["link", "state", "home", "up"])
def test_S_08_what_must_not_go_in_refuses_the_launch(tool: Launching, tmp_path: Path, what: str) -> None:
    (tmp_path / "link").symlink_to("/etc/passwd")
    given = {"link": tmp_path / "link", "state": tool.gate.state, "home": tmp_path, "up": tmp_path / ".." / "x"}[what]
    done = tool.run("true", options=["--in", str(given)], HOME=str(tmp_path))
    assert done.returncode == 125
    assert b"tidegate: error: " in done.stderr


def test_a_launch_that_could_not_begin_is_on_record_as_refused(tool: Launching) -> None:
    assert tool.run("true", options=[*NET, "--in", "/no/such"]).returncode == 125
    [line] = tool.gate.audit(type="launch")[-1:]
    assert (line["launch"]["act"], line["launch"]["outcome"]) == ("refuse", "launch_error")
    assert line["launch"]["argv"] == "true"


LEAVE = r"""
import os
for name in ("good", "kept.txt", ".bashrc", "-rf", "a\x1b[2J"):
    open(name, "w").write("theirs")
os.mkdir("sub"); open("sub/deep.txt", "w").write("deep")
os.symlink("/etc/passwd", "link"); os.symlink("/", "root"); os.chmod("good", 0o6777)
"""


def test_S_10_good_outputs_come_out_and_the_rest_is_named(tool: Launching, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "kept.txt").write_text("ours")
    outputs = tool.told("python3", "-c", LEAVE, options=["--out", str(out)])["outputs"]
    assert sorted(outputs["untrusted_paths"]) == ["good", "sub/deep.txt"]
    refused = {one["untrusted_path"]: one["reason"] for one in outputs["refused"]}
    assert refused.keys() == {"kept.txt", ".bashrc", "-rf", "a\\x1b[2J", "link", "root"}
    assert outputs["refused_count"] == 6
    assert {str(path.relative_to(out)) for path in out.rglob("*")} == {"good", "kept.txt", "sub", "sub/deep.txt"}
    assert ((out / "good").read_text(), (out / "kept.txt").read_text()) == ("theirs", "ours")
    assert (out / "good").stat().st_mode & 0o7777 == 0o644
    done = tool.run("python3", "-c", LEAVE, options=["--out", str(tmp_path / "again")])
    assert b"3 files copied out, 5 refused" in done.stderr
    assert b"\x1b" not in done.stderr


# -- one and another -------------------------------------------------------------------------------

PLANT = """
import ctypes, os, pathlib, socket, sys
mark = sys.argv[1]
places = []
for top, folders, _ in os.walk("/"):
    folders[:] = [one for one in folders if os.path.join(top, one) not in ("/proc", "/sys")]
    try:
        pathlib.Path(top, mark).write_text(mark)
        places.append(top)
    except OSError:
        pass
unnamed = socket.socket(socket.AF_UNIX)
unnamed.bind("\\0" + mark)
unnamed.listen()
door = socket.create_server(("0.0.0.0", 4444))
libc = ctypes.CDLL(None)
libc.shmget(0x7E57, 4096, 0o1666)
print(sorted(places), flush=True)
sys.stdin.read()
"""
LOOK = """
import ctypes, os, pathlib, socket, sys
marks, found = sys.argv[1:], []
for top, folders, files in os.walk("/"):
    folders[:] = [one for one in folders if os.path.join(top, one) not in ("/proc", "/sys")]
    found += [os.path.join(top, one) for one in files if one in marks]
for mark in marks:
    try:
        socket.socket(socket.AF_UNIX).connect("\\0" + mark)
        found.append("unnamed " + mark)
    except OSError:
        pass
if ctypes.CDLL(None).shmget(0x7E57, 0, 0) >= 0:
    found.append("shared memory")
for host in ("10.77.0.2", "fd77::2", "127.0.0.1"):
    try:
        socket.create_connection((host, 4444), timeout=3)
        found.append("port of " + host)
    except OSError:
        pass
print(found, [name for name in os.listdir("/proc") if name.isdigit()])
"""


BOTH = """
import subprocess, sys
plant = subprocess.Popen(["python3", "-c", sys.argv[1], "mark-of-a"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
plant.stdout.readline()
subprocess.run(["python3", "-c", sys.argv[2], "mark-of-a"])
plant.kill()
"""


def test_a_look_within_one_sandbox_finds_every_mark(tool: Launching) -> None:
    """Or the next test would show nothing."""
    found = tool.told("python3", "-c", BOTH, PLANT, LOOK, options=NET)["untrusted_stdout"].partition("]")[0]
    for mark in ("/dev/shm/", "/tmp/", "/work/", "unnamed ", "shared memory", "port of 10.77.0.2"):
        assert mark in found, found


def test_no_state_is_common_to_two_at_once_or_one_after_another(tool: Launching) -> None:
    def look() -> str:
        return str(tool.told("python3", "-c", LOOK, "mark-of-a", "mark-of-b", options=NET)["untrusted_stdout"])

    with contextlib.ExitStack() as both:
        for mark in ("mark-of-a", "mark-of-b"):
            one = both.enter_context(tool.started("python3", "-c", PLANT, mark, options=NET))
            assert one.stdout is not None
            assert one.stdout.readline() == b"['/dev/shm', '/tmp', '/work']\n"
        assert look() == "[] ['1']\n"
        sessions = [view["id"] for view in tool.gate.admin("GET", "/v1/sessions")[1]["sessions"]]
        assert len(set(sessions)) == len(sessions) >= 2
    assert look() == "[] ['1']\n"


def test_a_session_ends_with_its_launch_and_its_placeholder_is_worth_nothing_then(tool: Launching) -> None:
    credential = [*NET, "--credential", "github"]
    first = tool.told("sh", "-c", "echo $GITHUB_TOKEN", options=credential)
    placeholder = first["untrusted_stdout"].strip()

    def ended() -> bool:
        return all(view["id"] != first["session"] for view in tool.gate.admin("GET", "/v1/sessions")[1]["sessions"])

    assert within(3, ended)
    acts = [line["session_event"]["act"] for line in tool.gate.audit(type="session", session=first["session"])]
    assert (acts[0], acts[-1]) == ("open", "revoke")
    code = f"""
import urllib.error, urllib.request
asked = urllib.request.Request("https://{API}/told", headers={{"Authorization": "Bearer {placeholder}"}})
try:
    print(urllib.request.urlopen(asked).read())
except urllib.error.HTTPError as refused:
    print(refused.code, refused.read())
"""
    used = tool.told("python3", "-c", code, options=credential)
    assert used["untrusted_stdout"].startswith("403 "), used
    assert "has the secret" not in used["untrusted_stdout"]


def test_a_token_is_worth_nothing_once_its_lease_has_ended(tool: Launching) -> None:
    state = tool.gate.state
    with Lease.open(state, Ask(policy="default")) as lease:
        assert fetch(tool.gate, API, 443, "/hi", token=lease.token, ca=state / "ca.pem").body == b"hello"

    def refused() -> bool:
        with contextlib.suppress(OSError):  # cut while it is being revoked
            reply = fetch(tool.gate, API, 443, "/hi", token=lease.token, ca=state / "ca.pem")
            return reply.reason == "session_invalid"
        return False

    assert within(3, refused)


def test_a_launch_is_on_record_from_its_start_to_its_end(tool: Launching) -> None:
    credential = [*NET, "--credential", "github", "--owner", "team"]
    session = tool.told("sh", "-c", "echo \x1b[2J; exit 4", options=credential)["session"]
    begun, ended = tool.gate.wait_audit(lambda lines: len(lines) == 2, type="launch", session=session)
    assert (begun["launch"]["act"], begun["launch"]["net"], begun["owner"]) == ("start", "veth", "team")
    assert begun["launch"]["argv"] == "sh -c 'echo \\x1b[2J; exit 4'"
    assert begun["launch"]["limits"]["seconds"] == 30.0
    assert len(begun["launch"]["image"]) == 64
    assert (ended["launch"]["act"], ended["launch"]["outcome"], ended["launch"]["untrusted_exit_code"]) == (
        "end", "exited", 4,
    )  # fmt: skip
    assert tool.gate.cli("audit", "verify").returncode == 0


def test_nothing_of_a_launch_is_left(tool: Launching) -> None:
    with tool.started("sh", "-c", "echo up; cat", options=NET) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"up\n"
        assert left_by({process.pid}) != []  # or this would not see what is left
        process.stdin.close()
        assert process.wait(20) == 0
    assert left_by({process.pid}) == []
