"""What a whole configuration says of itself: one hash for all of it, one for what two halves must have in common."""

import json
from pathlib import Path
from typing import Any

import pytest

from tidegate.config.load import load_all
from tidegate.config.model import Settings

RULES = [{"host": "api.allowed.test"}, {"host": "b.allowed.test"}]
WHOLE: dict[str, Any] = {
    "version": 1,
    "state_dir": "s",
    "policies": {"one": {"allow": RULES}, "two": {"allow": RULES[:1]}},
    "credentials": {
        "demo": {
            "source": {"file": "/run/secrets/demo"},
            "for": [{"host": "api.allowed.test"}],
            "place": {"header": "Authorization", "format": "Bearer {secret}"},
            "placeholder": {"shape": "generic", "env": "DEMO"},
        }
    },
    "sessions": {"agent": {"policy": "one", "from": "10.0.0.2/32"}},
}


def load(folder: Path, **changed: Any) -> Settings:
    file = folder / "tidegate.yaml"
    file.write_text(json.dumps(WHOLE | changed))
    return load_all(file, environ={}, flags={}).settings


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"workers": 3}, id="workers"),
        pytest.param({"listen": {"http": "127.0.0.1:9999"}}, id="listen"),
        pytest.param({"dns": {"denied": "sinkhole"}}, id="dns"),
        pytest.param({"wall": {"watch": "required"}}, id="wall"),
    ],
)
def test_what_the_gate_alone_knows_changes_the_hash_and_not_the_keepers(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    one, other = load(tmp_path), load(tmp_path, **changed)
    assert one.hash != other.hash
    assert one.keeper_hash() == other.keeper_hash()


def test_where_the_file_lies_is_no_part_of_what_the_halves_have_in_common(tmp_path: Path) -> None:
    for name in ("keeper", "gate"):
        (tmp_path / name).mkdir()
    whole = {"state_dir": "/s"}
    assert load(tmp_path / "keeper", **whole).keeper_hash() == load(tmp_path / "gate", **whole).keeper_hash()


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"policies": WHOLE["policies"] | {"one": {"allow": RULES[1:]}}}, id="a policy"),
        pytest.param(
            {"credentials": {"demo": WHOLE["credentials"]["demo"] | {"source": {"file": "/run/secrets/other"}}}},
            id="a source",
        ),
        pytest.param({"credentials": {"demo": WHOLE["credentials"]["demo"] | {"ttl_seconds": 60}}}, id="a credential"),
        pytest.param({"sessions": {"agent": {"policy": "one", "from": "10.0.0.3/32"}}}, id="a session"),
        pytest.param({"deny_cidrs": ["203.0.113.0/24"]}, id="a network"),
        pytest.param({"audit": {"checkpoint_events": 7}}, id="the log"),
    ],
)
def test_what_the_keeper_knows_changes_both(tmp_path: Path, changed: dict[str, Any]) -> None:
    one, other = load(tmp_path), load(tmp_path, **changed)
    assert one.hash != other.hash
    assert one.keeper_hash() != other.keeper_hash()


def test_the_order_of_names_in_the_file_changes_nothing_for_the_keeper(tmp_path: Path) -> None:
    turned = {"policies": dict(reversed(WHOLE["policies"].items()))}
    assert load(tmp_path).keeper_hash() == load(tmp_path, **turned).keeper_hash()
