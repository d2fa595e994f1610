"""What the shipped compose file allows as it is: reading repositories of one account, by git too, and nothing else."""

from pathlib import Path

import pytest

from tidegate.config.load import load
from tidegate.policy.decide import Ask, compile_policy, decide
from tidegate.policy.names import HostName
from tidegate.policy.paths import parse_target
from tidegate.policy.reasons import Reason

SHIPPED = Path(__file__).parents[3] / "compose" / "gate" / "tidegate.yaml"


@pytest.mark.parametrize(
    ("method", "host", "path", "allowed"),
    [
        ("GET", "github.com", "/python/cpython.git/info/refs?service=git-upload-pack", True),
        ("POST", "github.com", "/python/cpython.git/git-upload-pack", True),
        ("GET", "api.github.com", "/repos/python/cpython", True),
        ("POST", "github.com", "/python/cpython.git/git-receive-pack", False),
        ("GET", "api.github.com", "/repos/other/x", False),
        ("GET", "example.com", "/", False),
    ],
)
def test_the_shipped_policy(method: str, host: str, path: str, *, allowed: bool) -> None:
    settings = load(SHIPPED, environ={}, flags={})
    policy = compile_policy(settings.policies["triage"])
    target = parse_target(path)
    assert not isinstance(target, Reason)
    assert decide(Ask(HostName(host), 443, "https", method, target), policy, 0.0).allowed is allowed
