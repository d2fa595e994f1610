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
