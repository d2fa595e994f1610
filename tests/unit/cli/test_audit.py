"""`tidegate audit`, by what it prints and how it exits."""

import json
import os
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.unit.audit.making import SignedLog, files, rewrite, written
from tests.unit.audit.spoiled import as_keeper, split_log
from tidegate.audit.checkpoint import encode_key
from tidegate.audit.schema import render_schema
from tidegate.cli.audit import audit
from tidegate.cli.main import main
from tidegate.errors import AuditError, TidegateError


def log_in(state: Path) -> SignedLog:
    """A state folder as a gate leaves it: the log and the public key."""
    (state / "audit").mkdir()
    log = SignedLog(state / "audit")
    written(log)
    (state / "audit.pub").write_text(encode_key(log.key.public_key()) + "\n")
    return log


def run(*arguments: object) -> Result:
    return CliRunner().invoke(audit, [str(one) for one in arguments], catch_exceptions=False)


@pytest.mark.parametrize("form", ["file", "text", "default"])
def test_a_whole_log_exits_0(tmp_path: Path, form: str) -> None:
    log = log_in(tmp_path)
    key = {
        "file": ["--key", tmp_path / "audit.pub"],
        "text": ["--key", encode_key(log.key.public_key())],
        "default": [],
    }
    result = run("verify", log.directory, *key[form], "--state-dir", tmp_path)
    assert (result.exit_code, result.stderr) == (
        0, "tidegate: whole: 18 lines in 2 chains, 8 not yet under a signature\n"
    )  # fmt: skip
    assert result.stdout.splitlines() == [
        "CHAIN     ROLE    LINES  SIGNED  STATE",
        "keeper-1  keeper  4      3       open",
        "gate-1    gate    14     7       open",
    ]


def test_a_changed_log_exits_1_and_names_the_line(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    rewrite(files(log.directory / "gate-1")[0], lambda found: [*found[:2], b"{}", *found[3:]])
    result = run("verify", log.directory, "--key", tmp_path / "audit.pub")
    assert result.exit_code == 1
    assert "not whole: gate-1/000000000000.jsonl:3: this is no record" in result.stderr
    assert run("verify", log.directory, "--key", tmp_path / "audit.pub", "-o", "json").exit_code == 1


def test_json_says_the_same(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    report = json.loads(run("verify", log.directory, "--key", tmp_path / "audit.pub", "-o", "json").stdout)
    assert report["ok"] is True
    assert [chain["chain"] for chain in report["chains"]] == ["keeper-1", "gate-1"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        pytest.param(["verify", "missing", "--key", "audit.pub"], 2, id="no such directory"),
        pytest.param(["verify", "audit", "--key", "missing.pub"], 2, id="no such key"),
        pytest.param(["verify", "audit", "--key", "audit/keeper-1/000000000000.jsonl"], 1, id="no key in the file"),
        pytest.param(["verify", "--nonsense"], 2, id="usage"),
    ],
)
def test_faults_and_usage_have_their_own_codes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int
) -> None:
    log_in(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit_:
        main(["audit", *arguments])
    assert exit_.value.code == code


@pytest.mark.skipif(os.geteuid() != 0, reason="as another user, only root can try it")
@pytest.mark.parametrize("closed", ["audit", "audit.pub"])
def test_a_log_that_one_may_not_read_is_not_called_broken(closed: str) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        state = Path(folder)
        state.chmod(0o755)
        log_in(state)
        (state / closed).chmod(0)
        os.seteuid(64999)
        try:
            with pytest.raises(AuditError, match=f"cannot read .*{closed}") as caught:
                run("verify", state / "audit", "--key", state / "audit.pub")
        finally:
            os.seteuid(0)
    assert "run this as root" in caught.value.hint


@pytest.mark.skipif(os.geteuid() != 0, reason="as another user, only root can try it")
@pytest.mark.parametrize("closed", ["gate-1/", "keeper-1/", "keeper-1/000000000000.jsonl"])
def test_a_chain_that_one_may_not_read_is_not_called_broken(closed: str) -> None:
    with split_log() as (log, key):
        (log.directory / closed).chmod(0)
        result = as_keeper("audit", "verify", log.directory, "--key", key)
        (log.directory / closed).chmod(0o700)
    assert result.returncode == 1
    assert f"not read: {closed}: permission denied (run this as root" in result.stderr
    assert f"not whole: {closed}" not in result.stderr
    assert "there is no keeper's chain" not in result.stderr


def test_the_key_is_printed_as_it_is_read(tmp_path: Path) -> None:
    log_in(tmp_path)
    assert run("key", "--state-dir", tmp_path).stdout == (tmp_path / "audit.pub").read_text()


def test_the_schema_is_printed() -> None:
    assert run("schema").stdout == render_schema()


@pytest.mark.parametrize("command", ["verify", "key"])
def test_a_key_that_is_not_there_is_not_called_unreadable(tmp_path: Path, command: str) -> None:
    log_in(tmp_path)
    (tmp_path / "audit.pub").unlink()
    with pytest.raises(TidegateError, match="there is no public key") as caught:
        run(command, "--state-dir", tmp_path)
    assert caught.value.where == str(tmp_path / "audit.pub")
    assert "at its first start" in caught.value.hint
