"""Invariant 9: each dangerous setting in force is said by its name, and nothing else is."""

import time
from pathlib import Path

import msgspec
import pytest

from tidegate.config.model import CommandSource, FileSource, Settings
from tidegate.credentials.spec import CredentialSpec, Place
from tidegate.policy.names import parse_pattern
from tidegate.policy.rules import PolicySpec, Rule
from tidegate.runtime.dangers import dangers
from tidegate.runtime.identity import Identities, Identity

ONE = Identity(1, 1)
APART = Identities(ONE, Identity(2, 2), Identity(3, 3), shared=False)
TOGETHER = Identities(ONE, ONE, ONE, shared=True)
HALF = Identities(ONE, Identity(2, 2), ONE, shared=False)
RULE = Rule(id="r", host=parse_pattern("a.test"), origin="t.yaml:3")
PLAIN = Settings(state_dir="/s", policies={"p": PolicySpec(name="p", allow=(RULE,))})

COMMAND = msgspec.structs.replace(PLAIN, sources={"vault": CommandSource(argv=("/bin/true",))})


def _rule(**change: object) -> Settings:
    rule = msgspec.structs.replace(RULE, **change)
    return msgspec.structs.replace(PLAIN, policies={"p": PolicySpec(name="p", allow=(rule,))})


def _observe(seconds: float) -> Settings:
    spec = PolicySpec(name="p", allow=(RULE,), observe_until=time.time() + seconds)
    return msgspec.structs.replace(PLAIN, policies={"p": spec})


WEAK = CredentialSpec(name="c", scope=(), place=Place(kind="header"), unsafe_short_secret=True)


def test_a_secret_that_others_can_read_is_said(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.touch(0o644)
    settings = msgspec.structs.replace(PLAIN, sources={"partner": FileSource(path=str(file))})
    (said,) = dangers(settings, APART)
    assert "credential partner" in said
    assert str(file) in said
    file.chmod(0o400)
    assert dangers(settings, APART) == []


@pytest.mark.parametrize(
    ("settings", "who", "names"),
    [
        pytest.param(PLAIN, APART, [], id="nothing dangerous"),
        pytest.param(PLAIN, TOGETHER, ["unsafe_shared_uid"], id="one uid"),
        pytest.param(PLAIN, HALF, [], id="a minter with nothing to do"),
        pytest.param(COMMAND, HALF, ["unsafe_shared_minter"], id="a minter of the keeper's uid"),
        pytest.param(COMMAND, APART, [], id="a minter of its own"),
        pytest.param(_rule(unsafe_wildcard=True), APART, ["unsafe_wildcard"], id="a wildcard"),
        pytest.param(_rule(tls="unsafe_passthrough"), APART, ["unsafe_passthrough"], id="passthrough"),
        pytest.param(_observe(86_400), APART, ["unsafe_observe_until"], id="observe"),
        pytest.param(_observe(-60), APART, [], id="observe that has ended"),
        pytest.param(
            msgspec.structs.replace(PLAIN, credentials={"c": WEAK}), APART, ["unsafe_short_secret"], id="weak"
        ),
    ],
)
def test_invariant_9_each_danger_is_named(settings: Settings, who: Identities, names: list[str]) -> None:
    found = dangers(settings, who)
    assert [text.partition(":")[0] for text in found] == names


def test_a_danger_says_where_it_was_asked_for() -> None:
    assert "t.yaml:3" in dangers(_rule(unsafe_wildcard=True), APART)[0]
