"""`tidegate up` while it runs: readiness, sockets, uids, sessions, reloads, `exec`.

Longer than a module should be, since all of it is asked of one gate.
"""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.up import CREDENTIAL, SECRET, children, config, every, ready, status, told, until
from tests.lab.gate import Gate, environment, gate, rule, tidegate_command


@pytest.fixture(scope="module")
def running() -> Iterator[Gate]:
    with gate(config(workers=2), env={"DEMO_TOKEN": SECRET, "OTHER_SECRET": SECRET}) as one:
        yield one


# ---- running -------------------------------------------------------------------------------------


def test_it_is_live_and_ready_and_says_what_it_is(running: Gate) -> None:
    assert running.admin("GET", "/livez") == (200, {"live": True})
    assert running.admin("GET", "/readyz")[1]["problems"] == []
    told = status(running)
    assert len(told["workers"]) == 2
    assert told["ready"]
    assert told["policies"] == ["default"]
    assert running.cli("health").stdout == "ready\n"


def test_a_second_gate_in_the_same_folder_is_refused_and_the_first_keeps_its_sockets(running: Gate) -> None:
    second = running.cli("up", check=False)
    assert second.returncode == 1
    assert f"runs here already, as pid {running.process.pid}" in second.stderr
    assert ready(running)


def test_a_second_gate_on_the_same_address_is_refused_and_doctor_says_whose_it_is(running: Gate) -> None:
    address = f"127.0.0.1:{running.port}"
    with tempfile.TemporaryDirectory(prefix="tg-", dir="/tmp") as other:
        second = running.cli("up", "--state-dir", other, "--listen-http", address, check=False)
        stranger = running.cli("doctor", "--state-dir", other, "-o", "json", check=False)
    assert second.returncode == 1
    assert f"another gate has {address} already, as pid {running.process.pid}" in second.stderr
    assert ready(running)
    assert f"another gate has it, pid {running.process.pid}" in stranger.stdout
    checks = {one["name"]: one for one in json.loads(running.cli("doctor", "-o", "json", check=False).stdout)}
    assert checks["port"]["state"] == "ok"
    assert str(running.state) in checks["port"]["found"]


def test_a_broken_file_locks_no_one_out_of_the_gate_that_runs(running: Gate) -> None:
    good = running.config_file.read_text()
    one = running.session()
    try:
        running.config_file.write_text("polices: {}\n" + good)
        ends = [
            running.cli(*words, check=False)
            for words in (
                ("health",),
                ("session", "show", one.id),
                ("session", "revoke", one.id),
                ("harness", "list"),
                ("log", "--since", "1m"),
                ("audit", "verify"),
                ("ca", "show"),
                ("exec", "--", "true"),
            )
        ]
    finally:
        running.config_file.write_text(good)
    assert [end.returncode for end in ends] == [0] * len(ends), [end.stderr for end in ends]
    assert all(end.stderr.count("warning: ") >= 2 and "polices" in end.stderr for end in ends)
    assert ends[0].stdout == "ready\n"
    until(lambda: not running.admin("GET", "/readyz")[1]["warnings"] or running.reload()[0] == 200)


def test_sockets_and_folders_have_the_modes_that_keep_others_out(running: Gate) -> None:
    def mode(name: str) -> int:
        return (running.state / name).stat().st_mode & 0o7777

    assert mode("admin.sock") == 0o600
    assert mode("session.sock") == 0o666
    assert mode("keeper") == 0o700
    assert mode("audit") == (0o1770 if os.geteuid() == 0 else 0o700)
    assert mode("ca.pem") == 0o444


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can try it as another user")
def test_only_keeper_and_gate_can_put_a_chain_into_the_log(running: Gate) -> None:
    def may_write(uid: int, gid: int) -> bool:
        made = running.state / "audit" / "gate-0-0123456789ab"
        code = f"import os; os.setgroups([]); os.setgid({gid}); os.setuid({uid}); os.mkdir({str(made)!r})"
        ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode
        if ended == 0:
            made.rmdir()
        return ended == 0

    keeper, gate, stranger = (64731, 64731), (64732, 64732), (64999, 64999)
    assert [may_write(*who) for who in (keeper, gate, stranger)] == [True, True, False]


def test_invariant_5_only_the_keeper_gets_the_variable_and_only_the_one_that_is_named(running: Gate) -> None:
    if os.geteuid() != 0:
        pytest.skip("the processes hide their memory; only root can look into their environment")
    for role, pids in children(running).items():
        assert pids, role
        for pid in pids:
            text = Path(f"/proc/{pid}/environ").read_text()
            assert ("DEMO_TOKEN" in text) == (role == "keeper"), role
            assert "OTHER_SECRET" not in text, role


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes as others")
def test_as_root_each_role_has_a_uid_of_its_own(running: Gate) -> None:
    uids = {}
    for role, pids in children(running).items():
        for pid in pids:
            lines = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
            uids[role] = set(lines["Uid"].split())
            if role != "zygote":
                assert lines["Groups"].strip() == "", role
                assert lines["CapEff"].strip() == "0" * 16, role
                assert lines["NoNewPrivs"].strip() == "1", role
    assert all(len(found) == 1 for found in uids.values())
    assert len({min(uids[role]) for role in ("keeper", "minter", "worker")} | {"0"}) == 4
    assert "unsafe_shared_uid" not in running.stderr


@pytest.mark.parametrize("role", ["worker", "zygote", "keeper", "minter"])
def test_what_is_killed_comes_back_by_itself_with_a_line_on_stderr(running: Gate, role: str) -> None:
    pid = children(running)[role][0]
    os.kill(pid, signal.SIGKILL)
    until(lambda: pid not in every(running))
    until(lambda: children(running)[role] and ready(running))
    assert pid not in children(running)[role]
    assert re.search(rf"error:.*{role}.*(ended|killed).*start", running.stderr)
    assert any(role in fault["what"] for fault in status(running)["faults"])
    (line,) = running.wait_audit(lambda found: len(told(found, pid, role)) == 1, type="fault")[-1:]
    assert (line["verdict"], line["fault"]["where"]) == ("error", "supervisor")


def test_a_session_opens_shows_freezes_and_ends(running: Gate) -> None:
    opened = json.loads(
        running.cli("session", "new", "--policy", "default", "--credential", "demo", "-o", "json").stdout
    )
    assert set(opened) == {"id", "token", "proxy_url", "env", "expires"}
    assert opened["proxy_url"] == f"http://s:{opened['token']}@127.0.0.1:{running.port}"
    assert opened["env"]["HTTPS_PROXY"] == opened["proxy_url"]
    assert opened["env"]["DEMO_TOKEN"] not in ("", SECRET)
    shown = json.loads(running.cli("session", "show", opened["id"], "-o", "json").stdout)
    assert shown["policy"] == "default"
    assert opened["token"] not in json.dumps(shown)
    running.cli("session", "freeze", opened["id"])
    assert json.loads(running.cli("session", "show", opened["id"], "-o", "json").stdout)["frozen"]
    running.cli("session", "thaw", opened["id"])
    assert opened["id"] in running.cli("session", "list").stdout
    assert "HTTPS_PROXY='http://s:" in running.cli("session", "env", opened["id"]).stdout.replace("=http", "='http")
    running.cli("session", "revoke", opened["id"])
    assert running.cli("session", "show", opened["id"], check=False).returncode == 1


def test_an_unknown_policy_is_refused_in_words(running: Gate) -> None:
    refused = running.cli("session", "new", "--policy", "nope", check=False)
    assert refused.returncode == 1
    assert "nope" in refused.stderr
    assert "policies of this gate: default" in refused.stderr
    assert "Traceback" not in refused.stderr


# ---- the harness's socket ------------------------------------------------------------------------


def _harness(one: Gate, method: str, path: str, token: str | None, body: Any = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("x", timeout=10)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(one.state / "session.sock"))
    with contextlib.closing(connection):
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        data = answer.read()
        return answer.status, json.loads(data) if data.startswith(b"{") else data


def test_a_harness_opens_its_own_sessions_up_to_its_count_and_sees_no_other(running: Gate) -> None:
    other = running.session()
    made = running.cli(
        "harness", "new", "--policy", "default", "--max-sessions", "1", "--ttl-seconds", "60", "-o", "json"
    )
    token = json.loads(made.stdout)["token"]
    code, opened = _harness(running, "POST", "/v1/sessions", token, {"policy": "default"})
    assert code == 201
    assert _harness(running, "POST", "/v1/sessions", token, {"policy": "default"})[0] == 422
    listed = _harness(running, "GET", "/v1/sessions", token)[1]["sessions"]
    assert [one["id"] for one in listed] == [opened["id"]]
    assert _harness(running, "DELETE", f"/v1/sessions/{other.id}", token)[0] == 422
    assert _harness(running, "DELETE", f"/v1/sessions/{opened['id']}", token)[0] == 200
    steps = [line["session_event"] for line in running.audit(type="session")]
    given = next(step for step in steps if step["act"] == "delegate")
    assert given["policy"] == "default"
    assert next(step["origin"] for step in steps if step["id"] == opened["id"]) == f"harness:{given['id']}"


@pytest.mark.parametrize(
    ("method", "path", "token", "code"),
    [
        pytest.param("GET", "/v1/sessions", None, 401, id="no token"),
        pytest.param("GET", "/v1/sessions", "wrong", 422, id="a wrong token"),
        pytest.param("POST", "/v1/reload", None, 404, id="the operator's reload"),
        pytest.param("GET", "/v1/status", None, 404, id="the operator's status"),
        pytest.param("POST", "/v1/harness", None, 404, id="another harness"),
    ],
)
def test_the_session_socket_gives_nothing_without_a_harness(
    running: Gate, method: str, path: str, token: str | None, code: int
) -> None:
    assert _harness(running, method, path, token, {} if method == "POST" else None)[0] == code


def test_the_session_socket_cuts_a_body_that_is_too_large(running: Gate) -> None:
    assert _harness(running, "POST", "/v1/sessions", "t", {"policy": "x" * 100_000})[0] == 413


# ---- reload --------------------------------------------------------------------------------------


def _with_policy(name: str) -> dict[str, Any]:
    fresh = config(workers=2)
    fresh["policies"][name] = {"allow": [rule("other.allowed.test")]}
    return fresh


def _whole(one: Gate, fresh: dict[str, Any]) -> str:
    old = yaml.safe_load(one.config_file.read_text())
    return yaml.safe_dump(
        {**fresh, "resolver": old["resolver"], "listen": old["listen"], "state_dir": old["state_dir"]}
    )


def test_invariant_8_a_good_file_is_taken_and_a_bad_one_changes_nothing(running: Gate) -> None:
    good = _whole(running, _with_policy("second"))
    code, answer = running.reload(good)
    assert (code, answer["changed"]) == (200, True)
    assert status(running)["policies"] == ["default", "second"]
    epochs = {worker["epoch"] for worker in status(running)["workers"]}
    assert epochs == {answer["epoch"]}

    code, refused = running.reload(good.replace("policies:", "polices:"))
    assert code == 409
    assert any("tidegate.yaml:" in problem and "policies" in problem for problem in refused["error"]["problems"])
    assert status(running)["policies"] == ["default", "second"]
    code, readiness = running.admin("GET", "/readyz")
    assert code == 200, "the last good policy is in force"
    assert any("was not taken" in warning for warning in readiness["warnings"])
    running.wait_line("the old configuration stays in force")
    (line,) = running.wait_audit(lambda found: found[-1]["config"]["act"] == "refuse", type="config")[-1:]
    assert line["verdict"] == "error"
    assert line["config"]["problems"] == refused["error"]["problems"]

    assert running.reload(good)[0] == 200
    assert not any("was not taken" in warning for warning in running.admin("GET", "/readyz")[1]["warnings"])


def test_what_cannot_change_live_is_refused_by_name(running: Gate) -> None:
    text = running.config_file.read_text()
    code, refused = running.reload(text.replace("workers: 2", "workers: 3"))
    assert code == 409
    assert "workers cannot change while the gate runs" in refused["error"]["what"]
    assert running.reload(text)[0] == 200


def test_a_revoked_session_of_the_file_is_told_of_and_comes_back_by_the_way_that_is_said(running: Gate) -> None:
    text = running.config_file.read_text()
    fresh = {**yaml.safe_load(text), "sessions": {"agent": {"policy": "default", "from": "127.8.0.1/32"}}}
    assert running.reload(fresh)[0] == 200
    ended = running.cli("session", "revoke", "agent")
    for said in (ended.stderr, running.cli("health").stderr):
        assert "sessions.agent is in the file but revoked" in said
    assert running.reload(text)[0] == 200
    assert running.reload(fresh)[0] == 200
    assert running.cli("session", "show", "agent").returncode == 0
    assert "revoked" not in running.cli("health").stderr
    assert running.reload(text)[0] == 200


def test_a_file_session_waits_for_the_end_of_the_one_that_has_its_network(running: Gate) -> None:
    text = running.config_file.read_text()
    other = running.session(source="127.8.0.2/32")
    fresh = {**yaml.safe_load(text), "sessions": {"agent": {"policy": "default", "from": "127.8.0.2/32"}}}
    code, refused = running.reload(fresh)
    assert code == 409
    assert f"tidegate session revoke {other.id}" in refused["error"]["what"]
    running.cli("session", "revoke", other.id)
    until(lambda: running.admin("GET", "/v1/sessions/agent")[0] == 200)
    until(lambda: not any("was not taken" in warning for warning in running.admin("GET", "/readyz")[1]["warnings"]))
    assert running.reload(text)[0] == 200


def test_a_new_variable_needs_a_restart_and_changes_nothing(running: Gate) -> None:
    text = running.config_file.read_text()
    whole = yaml.safe_load(text)
    whole["credentials"]["other"] = {**CREDENTIAL["demo"], "source": {"env": "OTHER_SECRET"}}
    whole["credentials"]["other"]["placeholder"] = {"shape": "generic", "env": "OTHER"}
    before = status(running)["epoch"]
    code, refused = running.reload(yaml.safe_dump(whole))
    assert code == 409
    (problem,) = refused["error"]["problems"]
    assert re.search(r"tidegate\.yaml:\d+: credentials\.other\.source: OTHER_SECRET needs a restart", problem)
    assert status(running)["epoch"] == before
    assert running.reload(text)[0] == 200


def test_lint_is_said_at_a_reload_once_and_a_policys_own_file_is_watched(running: Gate) -> None:
    folder = running.folder / "elsewhere"
    folder.mkdir()
    wide = {"allow": [{"host": "*.internal"}]}
    (folder / "own.policy").write_text(yaml.safe_dump({"allow": [rule("one.allowed.test")]}))
    text = running.config_file.read_text()
    whole = yaml.safe_load(text)
    whole["policies"]["own"] = str(folder / "own.policy")
    assert running.reload(yaml.safe_dump(whole))[0] == 200
    before = status(running)["epoch"]
    (folder / "own.policy").write_text(yaml.safe_dump(wide))
    until(lambda: status(running)["epoch"] > before)
    running.wait_line("own.policy:")
    (line,) = [line for line in running.stderr.splitlines() if "own.policy:" in line]
    assert "warning" in line
    assert running.reload(text)[0] == 200


def test_sighup_and_a_changed_file_reload_too(running: Gate) -> None:
    running.config_file.write_text(_whole(running, _with_policy("by-signal")))
    running.process.send_signal(signal.SIGHUP)
    until(lambda: "by-signal" in status(running)["policies"])
    fresh = running.config_file.with_suffix(".tmp")
    fresh.write_text(_whole(running, _with_policy("by-file")))
    fresh.replace(running.config_file)
    until(lambda: "by-file" in status(running)["policies"])


# ---- exec ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "code"),
    [
        pytest.param(["sh", "-c", "exit 7"], 7, id="its own code"),
        pytest.param(["sh", "-c", "kill -TERM $$"], 128 + 15, id="128 + n"),
        pytest.param(["/no/such/command"], 125, id="ours"),
    ],
)
def test_exec_ends_as_the_command_does(running: Gate, command: list[str], code: int) -> None:
    before = running.cli("session", "list").stdout
    done = running.cli("exec", "--policy", "default", "--", *command, check=False)
    assert done.returncode == code
    assert done.stderr.count("not a wall") == 1
    assert running.cli("session", "list").stdout == before, "the session ends with the command"


def test_exec_gives_the_placeholder_in_place_of_the_secret(running: Gate) -> None:
    done = subprocess.run(
        tidegate_command("exec", "--policy", "default", "--credential", "demo", "--", "env"),
        env={
            **environment(),
            "TIDEGATE_CONFIG": str(running.config_file),
            "DEMO_TOKEN": SECRET,
            "DEMO_TOKEN_FILE": "/s",
        },
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    variables = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    assert variables["DEMO_TOKEN"] != SECRET
    assert SECRET not in done.stdout
    assert "DEMO_TOKEN_FILE" not in variables
    assert variables["https_proxy"].startswith("http://s:")


def test_exec_passes_a_signal_on(running: Gate) -> None:
    process = subprocess.Popen(
        tidegate_command(
            "exec", "--policy", "default", "--", "sh", "-c", "trap 'exit 9' TERM; echo up; while :; do sleep 0.05; done"
        ),
        env={**environment(), "TIDEGATE_CONFIG": str(running.config_file)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(15) == 9


def test_exec_with_no_gate_is_our_fault(tmp_path: Path) -> None:
    done = subprocess.run(
        tidegate_command("exec", "--state-dir", str(tmp_path), "--policy", "p", "--", "true"),
        env=environment(), capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert done.returncode == 125
    assert "no gate is running" in done.stderr
