"""One chain that cannot be read, made so by whoever owns it, takes no other chain from the operator."""

import collections
import json
import os
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.unit.audit import spoiled
from tests.unit.audit.spoiled import as_keeper, split_log, spoil, three_chains
from tidegate.audit import query
from tidegate.audit import verify as module
from tidegate.audit.checkpoint import encode_key
from tidegate.cli.audit import audit
from tidegate.cli.log import log

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="as another user, only root can try it")


@pytest.fixture(autouse=True)
def _no_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SETTLE_SECONDS", 0)


def paths(out: str) -> list[str]:
    """The chain and path of each request that was shown, in order."""
    found = [json.loads(line) for line in out.splitlines()]
    return [f"{line['chain']}{line['http']['path']}" for line in found if line["type"] == "http"]


REST = ["gate-1/0", "gate-1/1", "gate-1/2"]


def judged(out: str) -> tuple[dict[str, str], dict[str, bool]]:
    """The state of each chain, and of each problem whether it is one of reading."""
    report = json.loads(out)
    assert report["ok"] is False
    assert all(problem["hint"] for problem in report["problems"]), "each says what to do"
    states = {chain["chain"]: chain["state"] for chain in report["chains"]}
    return states, {problem["where"]: problem["unread"] for problem in report["problems"]}


@as_root
@pytest.mark.parametrize("name", spoiled.CLOSED)
def test_what_its_owner_closed_for_the_keepers_user_hides_nothing_else(name: str) -> None:
    with split_log() as (made, key):
        assert as_keeper("audit", "verify", made.directory, "--key", key).returncode == 0
        spoil(made.directory, name)
        verified = as_keeper("audit", "verify", made.directory, "--key", key, "-o", "json")
        shown = as_keeper("log", "--dir", made.directory, "-o", "json")
    states, problems = judged(verified.stdout)
    assert (verified.returncode, states) == (1, {"keeper-1": "open", "gate-1": "open", "gate-2": "unread"})
    ((where, unread),) = problems.items()
    assert (where.startswith("gate-2/"), unread) == (True, True)
    assert (shown.returncode, paths(shown.stdout)) == (1, REST)
    assert f"not read: {where}: permission denied (run this as root" in shown.stderr
    assert "Traceback" not in shown.stderr + verified.stderr


def show(directory: Path, *more: str) -> Result:
    return CliRunner().invoke(log, ["--dir", str(directory), *more], catch_exceptions=False)


@pytest.mark.parametrize("name", [*spoiled.FOLDERS, *spoiled.SEGMENTS])
def test_what_stands_in_the_place_of_a_chain_hides_no_other(tmp_path: Path, name: str) -> None:
    directory = tmp_path / "audit"
    directory.mkdir()
    key = encode_key(three_chains(directory).key.public_key())
    spoil(directory, name)
    shown = show(directory, "-o", "json")
    assert shown.exit_code == 1
    assert [path for path in paths(shown.stdout) if not path.startswith("gate-2")] == REST
    assert "not read: gate-2/" in shown.stderr

    arguments = ["verify", str(directory), "--key", key]
    verified = CliRunner().invoke(audit, [*arguments, "-o", "json"], catch_exceptions=False)
    report = json.loads(verified.stdout)
    assert verified.exit_code == 1
    assert {problem["where"].partition("/")[0] for problem in report["problems"]} == {"gate-2"}
    assert {chain["chain"]: chain["state"] for chain in report["chains"]}["gate-1"] == "open"
    told = CliRunner().invoke(audit, arguments, catch_exceptions=False)
    assert ": gate-2/" in told.stderr


def test_lines_before_a_hole_are_shown(tmp_path: Path) -> None:
    three_chains(tmp_path)
    spoil(tmp_path, "a file of a tebibyte without a line's end")
    shown = show(tmp_path, "-o", "json")
    assert sorted(paths(shown.stdout)) == sorted([*REST, "gate-2/0", "gate-2/1", "gate-2/2"])


def test_a_folder_whose_name_is_no_text_holds_nobody(tmp_path: Path) -> None:
    key = encode_key(three_chains(tmp_path).key.public_key())
    os.rename(tmp_path / "gate-2", os.fsencode(tmp_path) + b"/gate-\xff\x1b[2J")
    shown = show(tmp_path, "-o", "json")
    assert (shown.exit_code, paths(shown.stdout)) == (0, REST)
    verified = CliRunner().invoke(audit, ["verify", str(tmp_path), "--key", key], catch_exceptions=False)
    assert (verified.exit_code, "gate-2/: the chain is missing" in verified.stderr) == (1, True)


def test_a_false_book_cannot_drive_the_terminal(tmp_path: Path) -> None:
    """A worker may make a chain of a keeper's name: it convinces nobody, and is shown all the same."""
    made = three_chains(tmp_path)
    (tmp_path / "keeper-2").mkdir()
    forged = (tmp_path / "keeper-1" / spoiled.FIRST).read_bytes()
    forged = forged.replace(b"keeper-1", b"keeper-2").replace(b'"chain":"gate-2"', rb'"chain":"\u001b[2J"')
    (tmp_path / "keeper-2" / spoiled.FIRST).write_bytes(spoiled.rehashed(forged.splitlines()))
    key = encode_key(made.key.public_key())
    verified = CliRunner().invoke(audit, ["verify", str(tmp_path), "--key", key], catch_exceptions=False)
    assert verified.exit_code == 1
    assert r"\x1b[2J/: the chain is missing" in verified.stderr
    assert all(char == "\n" or char.isprintable() for char in verified.stderr + verified.stdout)


def test_what_could_not_be_read_is_told_by_name_up_to_a_bound(tmp_path: Path) -> None:
    three_chains(tmp_path)
    for number in range(100):
        os.mkfifo(tmp_path / "gate-2" / f"{number + 500:012d}.jsonl")
    told = [line for line in show(tmp_path).stderr.splitlines() if "not read" in line]
    assert len(told) == 21
    assert told[-1] == "tidegate: not read: 80 more; `tidegate audit verify` judges every chain"


def test_more_chains_than_a_process_may_have_open_files_are_read(tmp_path: Path) -> None:
    """Each start of a worker is a chain, and a fallen one makes as many as it likes."""
    three_chains(tmp_path)
    line = (tmp_path / "gate-2" / spoiled.FIRST).read_bytes().splitlines()[1]
    for number in range(200):
        (tmp_path / f"gate-9-{number}").mkdir()
        (tmp_path / f"gate-9-{number}" / spoiled.FIRST).write_bytes(line + b"\n")
    few = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))"
    code = f"{few}; from tidegate.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "log", "--dir", str(tmp_path), "-o", "json"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, len(paths(done.stdout))) == (0, 206), done.stderr[-300:]


@as_root
def test_following_says_once_what_it_cannot_read_and_goes_on(tmp_path: Path) -> None:
    three_chains(tmp_path)
    spoil(tmp_path, "a pipe in place of the file")
    whole = tmp_path / "gate-1" / spoiled.FIRST
    more = whole.read_bytes().splitlines()[1]
    command = [sys.executable, "-c", "from tidegate.cli.main import main; main()"]
    with subprocess.Popen(
        [*command, "log", "--dir", str(tmp_path), "-o", "json", "--follow", "--type", "http"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as following:  # fmt: skip
        assert following.stdout is not None
        assert following.stderr is not None
        for _ in REST:
            assert paths(following.stdout.readline())
        assert "not read: gate-2/" in following.stderr.readline()
        for _ in range(4):  # as many turns, each past the pipe
            with whole.open("ab") as file:
                file.write(more + b"\n")
            assert paths(following.stdout.readline())
        following.send_signal(signal.SIGINT)
        rest = following.stderr.read()
    assert "not read" not in rest


def _newlines(chain: Path) -> None:
    (chain / "000000009000.jsonl").write_bytes(b"\n" * 200_000)


def _links(chain: Path) -> None:
    for number in range(300):
        (chain / f"{number + 9001:012d}.jsonl").hardlink_to(chain / spoiled.FIRST)


def _newlines_and_links(chain: Path) -> None:
    _newlines(chain)
    for number in range(300):
        (chain / f"{number + 9001:012d}.jsonl").hardlink_to(chain / "000000009000.jsonl")


def _between_records(chain: Path) -> None:
    line = (chain / spoiled.FIRST).read_bytes().splitlines(keepends=True)[1]
    (chain / "000000009000.jsonl").write_bytes((line + b"\n" * 500) * 500)


def _empty_files(chain: Path) -> None:
    for number in range(3000):
        (chain / f"{number + 9001:012d}.jsonl").touch()


@pytest.mark.parametrize("hold", [_newlines, _links, _newlines_and_links, _between_records, _empty_files])
@pytest.mark.parametrize("name", ["gate-2", "keeper-9"])
def test_what_is_no_record_holds_the_others_up_for_no_more_than_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hold: Callable[[Path], None], name: str
) -> None:
    """The merge takes the first record of each chain, and the book is read before: either would wait for as long."""
    three_chains(tmp_path)
    if name != "gate-2":
        (tmp_path / "gate-2").rename(tmp_path / name)
    hold(tmp_path / name)
    judged_lines = 0

    def read(line: bytes) -> object:
        nonlocal judged_lines
        judged_lines += 1
        return whole(line)

    whole = query._read
    monkeypatch.setattr(query, "_read", read)
    shown = show(tmp_path, "-o", "json")
    assert judged_lines < 10_000
    assert shown.exit_code == 1
    assert [path for path in paths(shown.stdout) if path.startswith("gate-1")] == REST
    assert f"not read: {name}/" in shown.stderr


def test_a_file_of_many_names_is_told_by_verify_too(tmp_path: Path) -> None:
    key = encode_key(three_chains(tmp_path).key.public_key())
    _newlines_and_links(tmp_path / "gate-2")
    verified = CliRunner().invoke(audit, ["verify", str(tmp_path), "--key", key], catch_exceptions=False)
    assert verified.exit_code == 1
    assert "not read: gate-2/000000009000.jsonl: this file has another name too (the gate makes no" in verified.stderr


def test_following_does_not_come_back_to_a_chain_that_was_given_up(tmp_path: Path) -> None:
    three_chains(tmp_path)
    _newlines(tmp_path / "gate-2")
    reader = query.Reader(tmp_path, query.Filter(type="http"))
    assert len(list(reader.read())) == 6
    before = reader.skipped
    assert (list(reader.read()), reader.skipped) == ([], before)
    assert 1000 <= before <= 1001


@pytest.mark.parametrize(
    ("first", "sparse"),
    [
        pytest.param(lambda line: line + b" " * 40_000, True, id="a long record, then a hole"),
        pytest.param(lambda line: line, True, id="a record, then a hole"),
        pytest.param(lambda line: line + b" " * 900_000, False, id="records as long as can be"),
    ],
)
def test_waiting_chains_hold_little_memory(tmp_path: Path, first: Callable[[bytes], bytes], *, sparse: bool) -> None:
    three_chains(tmp_path)
    line = first((tmp_path / "gate-2" / spoiled.FIRST).read_bytes().splitlines()[1])
    for number in range(60):
        (tmp_path / f"gate-9-{number}").mkdir()
        with (tmp_path / f"gate-9-{number}" / spoiled.FIRST).open("wb") as file:
            file.write(line + b"\n")
            if sparse:
                file.truncate(1 << 21)
    reader = query.Reader(tmp_path, query.Filter())
    tracemalloc.start()
    try:
        collections.deque(reader.read(), maxlen=0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 60 * 50_000 + 3_000_000


def test_verify_ends_a_chain_of_very_many_files_without_a_line(tmp_path: Path) -> None:
    key = encode_key(three_chains(tmp_path).key.public_key())
    _empty_files(tmp_path / "gate-2")
    verified = CliRunner().invoke(audit, ["verify", str(tmp_path), "--key", key], catch_exceptions=False)
    assert verified.exit_code == 1
    assert "gate-2/000000010001.jsonl: more than 1000 files of this chain have no line" in verified.stderr
