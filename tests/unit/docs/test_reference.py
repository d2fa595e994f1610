"""The reference pages say what the code says, and say it of everything."""

import re
from pathlib import Path

import pytest

from tests.unit.docs.commands import leaf_commands
from tools.reference import FOLDER, PAGES


@pytest.mark.parametrize("name", sorted(PAGES))
def test_page_is_current(name: str) -> None:
    assert (FOLDER / name).read_text() == PAGES[name](), "stale: run `python tools/reference.py`"


def test_every_command_has_a_section_and_an_example() -> None:
    page = (FOLDER / "cli.md").read_text()
    for path in leaf_commands():
        section = page.partition(f"\n## {path}\n")[2].partition("\n## ")[0]
        assert f"Example: `{path}" in section or f"$({path}" in section, path


def test_every_audit_field_has_a_meaning() -> None:
    page = (FOLDER / "audit-fields.md").read_text()
    assert not re.findall(r"^\| `\w+` \|[^|]*\|\s*\|$", page, re.MULTILINE)


def test_every_exit_code_in_the_code_is_on_the_page() -> None:
    page = (FOLDER / "exit-codes.md").read_text()
    for code in (0, 1, 2, 3, 124, 125, 130, 137, 141):
        assert f"| {code} |" in page


def test_reference_pages_are_all_listed() -> None:
    index = (Path(FOLDER).parent / "README.md").read_text()
    for page in FOLDER.iterdir():
        assert page.name in index, page.name
