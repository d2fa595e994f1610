"""`tidegate log`, by what it prints."""

import fcntl
import json
import os
import pty
import re
import struct
import termios
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.unit.audit.making import ALICE, BOB, SignedLog, allow, conn, http, own
from tidegate.audit.event import CallScope, Conn, Credential, Dns, Launch, Subject
from tidegate.audit.query import Filter, Reader
from tidegate.audit.redact import loggable
from tidegate.audit.table import Layout, row
from tidegate.cli.log import log
from tidegate.errors import AuditError
from tidegate.policy.reasons import Reason, Verdict


def example(directory: Path) -> None:
    signed = SignedLog(directory)
    recorder = signed.gate()
    signed.clock.forward(1)
    recorder.http_decision(
        ALICE, "h1", http(path="/v1/items"), verdict=Verdict.ALLOW, rule="triage.allow.3", parent="c1"
    )
    recorder.event(ALICE, "h1", Credential(name="github", place="header"), parent="c1")
    signed.clock.forward(0.25)
    ended = http(path="/v1/items", status=200, bytes_up=812, bytes_down=20_000_000, credential="github")
    recorder.http_end(ALICE, "h1", ended, verdict=Verdict.ALLOW, rule="triage.allow.3", parent="c1")
    recorder.conn_decision(BOB, "c2", conn("db.internal"), verdict=Verdict.ALLOW, rule="triage.allow.4")
    signed.clock.forward(1)
    recorder.http_decision(BOB, "h2", http("evil.example", "/\x1b[2J"), verdict=Verdict.DENY, reason=Reason.METADATA)
    recorder.http_decision(
        BOB, "h3", http("new.example"), verdict=Verdict.ALLOW, reason=Reason.NOT_IN_ALLOWLIST, observed=True
    )
    recorder.http_end(
        ALICE, "h4", http(path="/slow"), verdict=Verdict.ERROR, reason=Reason.UPSTREAM_TIMEOUT, rule="triage.allow.3"
    )
    recorder.event(
        BOB, "d1", Dns(name=loggable("x.evil.example"), rrtype=loggable("AAAA")),
        verdict=Verdict.DENY, reason=Reason.NOT_IN_ALLOWLIST,
    )  # fmt: skip
    recorder.incident(BOB, "h2", "metadata", reason=Reason.METADATA, detail=loggable("eight spellings"))
    signed.checkpoint(recorder)


TABLE = Path(__file__).with_name("log_table.txt")


def run(directory: Path, *arguments: str) -> str:
    result = CliRunner().invoke(log, ["--dir", str(directory), *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_table_is_as_agreed(tmp_path: Path) -> None:
    example(tmp_path)
    assert run(tmp_path) == TABLE.read_text()


def test_what_broke_a_request_off_stands_where_there_is_no_reason(tmp_path: Path) -> None:
    recorder = SignedLog(tmp_path).gate()
    recorder.http_end(BOB, "h", http(end="client_left"), verdict=Verdict.ERROR)
    recorder.close()
    assert run(tmp_path, "--verdict", "error").splitlines()[-1].split()[-1] == "client_left"


def test_a_counted_record_shows_its_count(tmp_path: Path) -> None:
    recorder = SignedLog(tmp_path).gate()
    for _ in range(50):
        recorder.http_decision(BOB, "h", http(), verdict=Verdict.DENY, reason=Reason.METADATA)
    recorder.close()
    assert "metadata ×30" in run(tmp_path, "--verdict", "deny").splitlines()[-1]


@pytest.mark.parametrize(
    ("block", "cells"),
    [
        ({"transport": "udp", "address": "192.0.2.7", "port": 443}, ["udp", "192.0.2.7:443", "from 10.77.0.2"]),
        ({"transport": "tcp", "address": "2001:db8::7", "port": 80}, ["tcp", "[2001:db8::7]:80", "from 10.77.0.2"]),
        ({"transport": "icmp", "address": "192.0.2.7", "port": None}, ["icmp", "192.0.2.7", "from 10.77.0.2"]),
        ({"transport": "other"}, ["other", "from 10.77.0.2"]),
        ({"transport": "other", "client": None}, ["other"]),
    ],
)
def test_what_the_wall_dropped_is_shown_by_where_it_was_meant_to_go(
    tmp_path: Path, block: dict[str, Any], cells: list[str]
) -> None:
    recorder = SignedLog(tmp_path).gate()
    dropped = Conn(**{"client": "10.77.0.2", "end": "wall_dropped", **block})
    recorder.event(BOB, "d", dropped, verdict=Verdict.DENY, reason=Reason.WALL_DROPPED)
    recorder.close()
    line = run(tmp_path, "--reason", "wall_dropped").splitlines()[-1]
    assert re.split("  +", line)[1:] == ["deny", *cells, "wall_dropped"]


def test_a_launch_shows_what_ran_and_how_it_ended(tmp_path: Path) -> None:
    log = SignedLog(tmp_path)
    one = {"id": loggable("box"), "argv": loggable("python3 \x1b[2J/in/fetch.py")}
    log.keeper.append(own("launch"), Launch(act="start", **one), keep=True)
    log.keeper.append(own("launch"), Launch(act="end", outcome=loggable("timeout"), **one), keep=True)
    shown = run(tmp_path, "--type", "launch").splitlines()[1:]
    assert [re.split("  +", line)[1:] for line in shown] == [
        ["launch", "start box python3 \\x1b[2J/in/fetch.py"], ["launch", "end timeout box"],
    ]  # fmt: skip


def test_calls_have_a_column_where_there_are_some_and_drive_no_terminal(tmp_path: Path) -> None:
    recorder = SignedLog(tmp_path).gate()
    call = CallScope(loggable("web\n\x1b[2J"), loggable("c1"), "s-alice")
    for subject in (ALICE, Subject(session="s-call", call=call), BOB):
        allow(recorder, subject)
    recorder.close()
    head, alone = run(tmp_path, "--call", "c1").splitlines()
    assert head.split()[-1] == "CALL"
    assert alone.split()[-1] == "web\\x0a\\x1b[2J:c1"
    whole = run(tmp_path, "--session", "s-alice").splitlines()
    assert [line.endswith("web\\x0a\\x1b[2J:c1") for line in whole] == [False, False, True]
    assert "CALL" not in run(tmp_path, "--session", "s-bob").splitlines()[0].split()


@pytest.mark.parametrize("columns", [80, 100, 132, 200])
@pytest.mark.parametrize("follow", [False, True])
def test_the_table_fits_its_terminal_and_says_what_it_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: int, follow: bool
) -> None:
    example(tmp_path)
    entries = list(Reader(tmp_path, Filter()).read())
    rows = [row(entry) for entry in entries]
    layout = Layout(None if follow else rows, colour=False, most=columns)
    lines = [layout.header(), *map(layout.line, rows)]
    assert max(map(len, lines)) <= columns
    shown = layout.header().split()
    assert all(title.split()[0] in shown for title in ("TIME", "VERDICT", "WHAT", "HOST", "PATH OR DETAIL", "REASON"))
    assert all(title.split()[0] not in shown for title in layout.left_out)
    left_out = set(layout.left_out) - ({"CALL"} if follow else set())  # whether one comes, nobody knows then
    assert bool(left_out) is (columns < 132)
    assert "not_in_allowlist" in "\n".join(lines)
    assert "api.example.com" in "\n".join(lines)


def test_a_terminal_is_asked_how_wide_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    reader, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    with open(terminal, "w") as screen:
        monkeypatch.setattr("sys.stdout", screen)
        log.main(["--dir", str(tmp_path), "--verdict", "deny"], standalone_mode=False)
        screen.flush()
        shown = b""
        while shown.count(b"\n") < 2:
            shown += os.read(reader, 65536)
    os.close(reader)
    assert max(len(line) for line in shown.decode().splitlines()) <= 80


def test_json_is_the_lines_as_written(tmp_path: Path) -> None:
    example(tmp_path)
    out = run(tmp_path, "-o", "json", "--session", "s-alice", "--type", "http").splitlines()
    assert [json.loads(line)["phase"] for line in out] == ["decision", "end", "end"]
    raw = (tmp_path / "gate-1" / "000000000000.jsonl").read_text().splitlines()
    assert set(out) <= set(raw)


@pytest.mark.parametrize(
    ("arguments", "rows"),
    [
        (["--verdict", "deny", "--type", "http"], 1),
        (["--host", "db.internal"], 1),
        (["--reason", "metadata", "--type", "incident"], 1),
        (["--since", "2030-01-02T03:04:07Z", "--until", "2030-01-02T03:04:08Z", "--type", "http"], 3),
        (["--session", "s-alice"], 3),
        (["--flow", "h2"], 2),
        (["--session", "nobody"], 0),
    ],
)
def test_filters_reach_the_reader(tmp_path: Path, arguments: list[str], rows: int) -> None:
    example(tmp_path)
    assert len(run(tmp_path, *arguments).splitlines()) == rows + 1


@pytest.mark.parametrize("arguments", [["--since", "whenever"], ["--verdict", "maybe"], ["-o", "xml"]])
def test_wrong_usage_is_said(tmp_path: Path, arguments: list[str]) -> None:
    assert CliRunner().invoke(log, ["--dir", str(tmp_path), *arguments]).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--verdict", "denied"], "did you mean deny?"),
        (["--reason", "not_in_alowlist"], "did you mean not_in_allowlist?"),
        (["--reason", "revokd"], "did you mean revoked?"),
        (["--type", "htpp"], "did you mean http?"),
        (["--type", "zzz"], "it is one of checkpoint, config"),
    ],
)
def test_a_word_that_no_record_has_is_wrong_usage_and_not_an_empty_log(
    tmp_path: Path, arguments: list[str], told: str
) -> None:
    result = CliRunner().invoke(log, ["--dir", str(tmp_path), *arguments])
    assert result.exit_code == 2
    assert told in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("option", "inner", "hints"),
    [
        ("--dir", "", ["--dir is the folder that holds the chains"]),
        ("--state-dir", "audit", ["`tidegate up`", "--state-dir", "--config", "--dir"]),
    ],
)
def test_a_folder_without_a_chain_is_said_with_what_to_do(
    tmp_path: Path, option: str, inner: str, hints: list[str]
) -> None:
    (tmp_path / inner).mkdir(exist_ok=True)
    with pytest.raises(AuditError, match="there is no log in this folder") as caught:
        CliRunner().invoke(log, [option, str(tmp_path)], catch_exceptions=False)
    assert caught.value.where == str(tmp_path / inner)
    assert all(hint in caught.value.hint for hint in hints)
    assert "AUDIT" not in str(caught.value)


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_colour_on_a_terminal_unless_no_color(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_color: str, coloured: bool
) -> None:
    example(tmp_path)
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", "xterm")
    reader, terminal = pty.openpty()
    with open(terminal, "w") as screen:
        monkeypatch.setattr("sys.stdout", screen)
        log.main(["--dir", str(tmp_path), "--host", "db.internal"], standalone_mode=False)
        screen.flush()
        shown = b""
        while shown.count(b"\n") < 2:
            shown += os.read(reader, 65536)
    os.close(reader)
    assert (b"\x1b[32mallow  \x1b[0m" in shown) is coloured
    assert b"db.internal" in shown


def test_V_11_a_hostile_log_file_cannot_drive_the_terminal(tmp_path: Path) -> None:
    example(tmp_path)
    path = tmp_path / "gate-1" / "000000000000.jsonl"
    path.write_text(path.read_text().replace("db.internal", r"\u001b[2J\r\ndb").replace("triage.allow.4", r"\u009b31m"))
    shown = run(tmp_path)
    assert all(char == "\n" or char.isprintable() for char in shown)


def test_lines_that_are_no_records_are_told(tmp_path: Path) -> None:
    example(tmp_path)
    with (tmp_path / "gate-1" / "000000000000.jsonl").open("a") as file:
        file.write("garbage\n")
    result = CliRunner().invoke(log, ["--dir", str(tmp_path)])
    assert "1 lines are no records" in result.stderr
