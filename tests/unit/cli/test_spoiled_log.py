"""One chain that cannot be read, made so by whoever owns it, takes no other chain from the operator."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.unit.audit import spoiled
from tests.unit.audit.spoiled import as_keeper, split_log, spoil, three_chains
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
