"""The front pages say what is so: their configuration loads, their links lead somewhere."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tidegate.config.load import load

ROOT = Path(__file__).parents[3]
PAGES = sorted(
    page
    for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/README.md"), *ROOT.glob("tests/*/*.md"))
    if ".venv" not in page.parts
)
_LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_configuration_of_the_readme_loads(tmp_path: Path) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        file = tmp_path / "tidegate.yaml"
        file.write_text(block)
        assert load(file, environ={"HOME": str(tmp_path)}, flags={}).policies


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in _LINK.findall(page.read_text()):
        assert (page.parent / link).exists(), f"{link} is not there"


_PLACE = re.compile(r"\]\(([^)#:]*\.md)?#([^)]+)\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_into_a_page_lead_to_a_heading(page: Path) -> None:
    for file, place in _PLACE.findall(page.read_text()):
        text = (page.parent / file).read_text() if file else page.read_text()
        headings = [line.lstrip("#").strip().lower() for line in text.splitlines() if line.startswith("#")]
        anchors = {re.sub(r"[^\w -]", "", heading).replace(" ", "-") for heading in headings}
        assert place in anchors, f"{file}#{place} is no heading"


_SOURCE = re.compile(r"`([\w.-]+(?:/[\w.-]+)*\.(?:py|sh|c|yaml|toml|lock))`")
_TEST = re.compile(r"`(test_\w+)`")
_CASE = re.compile(r"\b([A-Z])[-_](\d\d)(?!\d)")
_VARIABLE = re.compile(r"TIDEGATE_[A-Z_]+[A-Z]")
_READERS = ("tidegate.yaml", "./tidegate.yaml", "tidegate.lock", "policy-tests.yaml")
"""Files of the reader's own."""


def _tracked() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return listed.stdout.splitlines()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_source_files_that_a_page_names_are_there(page: Path) -> None:
    names, text = _tracked(), page.read_text()
    for named in _SOURCE.findall(text):
        there = any(name == named or name.endswith(f"/{named}") for name in names) or (page.parent / named).exists()
        assert there or named in _READERS, f"{named} is not there"


def test_tests_that_a_page_names_are_there() -> None:
    defined = "\n".join(path.read_text() for path in ROOT.glob("tests/**/test_*.py"))
    for page in PAGES:
        for named in _TEST.findall(page.read_text()):
            assert f"def {named}(" in defined or any(ROOT.glob(f"tests/**/{named}.py")), f"{page.name}: {named}"


def test_every_case_that_is_cited_has_its_line() -> None:
    listed = set(re.findall(r"^\| ([A-Z]-\d\d) \|", (ROOT / "docs/explanation/cases.md").read_text(), re.MULTILINE))
    cited = {
        f"{group}-{number}"
        for folder in ("tests", "proxy", "addons", "launcher")
        for path in ROOT.glob(f"{folder}/**/*.py")
        for group, number in re.findall(r"def test_([A-Z])_(\d\d)_", path.read_text()) + _CASE.findall(path.read_text())
        if group in "ANDPRCXVS"
    }
    assert len(cited) > 200
    assert cited <= listed, sorted(cited - listed)


def test_a_test_is_named_after_a_case_or_after_nothing() -> None:
    """A capital at the start of a test's name is a group of the cases, with or without a number."""
    names = {
        name
        for path in ROOT.glob("tests/**/*.py")
        for name in re.findall(r"^(?:async )?def test_([A-Z]\w*)", path.read_text(), re.MULTILINE)
    }
    assert {name for name in names if not re.match(r"[ANDPRCXVBS]_", name)} == set()


def test_every_variable_that_the_program_reads_is_on_a_page() -> None:
    told = "\n".join(page.read_text() for page in PAGES)
    read = {name for path in ROOT.glob("proxy/**/*.py") for name in _VARIABLE.findall(path.read_text())}
    examples = {"TIDEGATE_LISTEN_HTPP", "TIDEGATE_LISTEN_HTTP_FILE"}  # in docstrings
    assert {name for name in read - examples if name not in told} == set()


def test_wheel_holds_the_three_packages_and_the_presets(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for wanted in ("tidegate/__init__.py", "tidegate_addons/__init__.py", "tidegate_launcher/__init__.py"):
        assert wanted in names
    presets = {path.name for path in (ROOT / "allowlists").glob("*.yaml")}
    assert presets
    assert {name.rpartition("/")[2] for name in names if name.startswith("tidegate/allowlists/")} >= presets
    assert not [name for name in names if name.endswith((".pem", ".key"))]
