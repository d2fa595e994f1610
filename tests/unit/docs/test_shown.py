"""What a page shows is so: its commands parse, its configurations load."""

import re
from pathlib import Path

import pytest
import yaml

from tests.unit.docs.commands import parse, shown_commands
from tidegate.cli.expectation import read_expectations
from tidegate.config.load import load

ROOT = Path(__file__).parents[3]
PAGES = [
    page
    for page in sorted((*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/README.md")))
    if ".venv" not in page.parts and page.parent.name not in ("reasons", "reference")
]
_YAML = re.compile(r"```yaml\n(.*?)```", re.DOTALL)
_LOCK = """\
version: 1
hosts:
  pip: [{host: index.example, protocol: https, port: 443, found: pip}]
  npm: [{host: npm.example, protocol: https, port: 443, found: npm}]
"""
"""What `policy lock` would have found."""
SHOWN = [(page, call) for page in PAGES for call in shown_commands(page)]
BLOCKS = [(page, block) for page in PAGES for block in _YAML.findall(page.read_text())]


def _id(pair: tuple[Path, str]) -> str:
    return f"{pair[0].stem}: {pair[1].strip().splitlines()[-1][:50]}"


def test_there_is_something_to_look_at() -> None:
    assert len(SHOWN) > 60
    assert len(BLOCKS) > 8


@pytest.mark.parametrize("shown", SHOWN, ids=_id)
def test_command_parses(shown: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("policy-tests.yaml", "tidegate.yaml"):  # where a command wants a file that is there
        (tmp_path / name).touch()
    parse(shown[1])


@pytest.mark.parametrize("shown", BLOCKS, ids=_id)
def test_configuration_loads(shown: tuple[Path, str], tmp_path: Path) -> None:
    file = tmp_path / "tidegate.yaml"
    text = shown[1]
    if "tests:" in text:
        file.write_text(text)
        assert read_expectations(file)[1]
        return
    (tmp_path / "tidegate.lock").write_text(_LOCK)
    keys = yaml.safe_load(text)
    assert isinstance(keys, dict)
    file.write_text(text if "version" in keys else f"version: 1\n{text}")
    loaded = load(file, environ={"HOME": str(tmp_path)}, flags={})
    assert loaded.policies
