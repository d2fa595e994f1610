"""The check that keeps registry hosts and machine paths out of the tree."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_tree", ROOT / "tools" / "check_tree.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Spelled in parts: the check reads this file too.
@pytest.mark.parametrize(
    "line",
    [
        pytest.param("index = https://" + "py" + "pi.org/simple", id="https-url"),
        pytest.param("host: REGISTRY.NPM" + "JS.org", id="upper-case"),
        pytest.param("see mirror.files.python" + "hosted.org.", id="below-a-known-name"),
        pytest.param("deb http://" + "deb." + "debian.org/debian stable main", id="apt-line"),
    ],
)
def test_finds_a_registry_host(line: str) -> None:
    assert load().findings(f"first line\n{line}\n") == [(2, "names a package registry's host")]


@pytest.mark.parametrize(
    "line", ["example.org and api.github.com", "notpy" + "pi.org", "a.py, setup.cfg and os.path", "crates"]
)
def test_leaves_other_words_alone(line: str) -> None:
    assert load().findings(line) == []


def test_finds_the_path_of_this_checkout() -> None:
    assert load().findings("cd /srv/build/tidegate/docs", "/srv/build/tidegate") == [
        (1, "holds a path of the machine it was written on")
    ]


def test_locks_carry_a_hash_for_each_package_and_no_url() -> None:
    for name in ("requirements.lock", "requirements-dev.lock"):
        text = (ROOT / name).read_text()
        assert "://" not in text
        blocks = [block for block in text.split("\n") if "==" in block]
        assert len(blocks) > 50
        assert all(block.endswith("\\") for block in blocks), "a package without a hash"
