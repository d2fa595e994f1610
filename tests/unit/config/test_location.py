"""A gate is found by its file though the file is wrong: two keys are enough."""

from pathlib import Path

import pytest

from tidegate.config.location import locate
from tidegate.config.problem import ConfigErrors

BROKEN = {
    "an-unknown-key": "polices: {}\n",
    "not-yaml": "policies: [\n  {a: b\n",
    "a-bad-rule": "policies: {one: {allow: [{host: 'a..b'}]}}\n",
    "a-key-twice": "workers: 1\nworkers: 2\n",
}


@pytest.mark.parametrize("rest", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
def test_a_broken_file_still_says_where_its_gate_is(tmp_path: Path, rest: str, first: bool) -> None:
    file = tmp_path / "tidegate.yaml"
    keys = "state_dir: here  # as ever\naudit:\n\n  # kept elsewhere\n  dir: there\n"
    file.write_text("version: 1\n" + (keys + rest if first or "[" in rest else rest + keys))
    found = locate(file, environ={}, with_audit=True)
    assert (found.state_dir, found.audit_dir) == (tmp_path / "here", tmp_path / "there")
    assert found.problems


def test_the_environment_is_heard_as_ever(tmp_path: Path) -> None:
    file = tmp_path / "tidegate.yaml"
    file.write_text("version: 1\npolices: {}\nstate_dir: here\n")
    environ = {"TIDEGATE_AUDIT_DIR": "/elsewhere", "TIDEGATE_LISTEN_HTTP": "nonsense"}
    found = locate(file, environ=environ, with_audit=True)
    assert (found.state_dir, found.audit_dir) == (tmp_path / "here", Path("/elsewhere"))


@pytest.mark.parametrize(
    "text",
    [
        "version: 1\nstate_dir: [1]\n",
        "state_dir: a\nstate_dir: b\n",
        "{version: 1, state_dir: a, polices: {}}\n",
        " version: 1\n state_dir: a\n polices: {}\n",
    ],
    ids=["no-path", "twice", "in-braces", "indented"],
)
def test_a_folder_that_cannot_be_told_is_not_guessed(tmp_path: Path, text: str) -> None:
    file = tmp_path / "tidegate.yaml"
    file.write_text(text)
    with pytest.raises(ConfigErrors) as caught:
        locate(file, environ={}, with_audit=False)
    assert "--state-dir" in caught.value.hint


def test_an_error_in_the_audit_block_keeps_no_one_from_the_gate_but_from_the_log(tmp_path: Path) -> None:
    file = tmp_path / "tidegate.yaml"
    file.write_text("version: 1\nstate_dir: here\naudit: {dri: there}\n")
    assert locate(file, environ={}, with_audit=False).state_dir == tmp_path / "here"
    with pytest.raises(ConfigErrors, match="dri"):
        locate(file, environ={}, with_audit=True)


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigErrors, match="cannot be read"):
        locate(tmp_path / "none.yaml", environ={}, with_audit=False)
