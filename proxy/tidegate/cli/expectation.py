"""The file of expectations for `tidegate policy test`."""

from pathlib import Path
from typing import Literal

import msgspec
import yaml

from tidegate.config.problem import ConfigErrors, Problem
from tidegate.config.read import Reading, reader
from tidegate.config.source import compose

__all__ = ["Expectation", "read_expectations"]


class Expectation(msgspec.Struct, frozen=True):
    """One request and what must become of it."""

    method: str
    """HTTP method, or CONNECT to ask for the connection alone."""
    url: str
    """URL; its scheme is the protocol: https, http or tcp."""
    expect: Literal["allow", "deny"]
    """Verdict."""
    reason: str | None = None
    """Reason of a denial, such as `path_not_allowed`."""
    rule: str | None = None
    """Id of the rule that decides."""
    policy: str | None = None
    """Policy, where it is not the one of the file or of `--policy`."""
    line_: int = 0
    key_: str = ""


class _Expectations(msgspec.Struct, frozen=True):
    tests: tuple[Expectation, ...]
    policy: str | None = None


def read_expectations(path: Path) -> tuple[str | None, tuple[Expectation, ...]]:
    """Return the policy named at the top, if any, and the expectations.

    The file is a list of them, or `{policy: NAME, tests: [...]}`. Raises `ConfigErrors`, also for an
    empty one: a test without expectations would always pass.
    """
    try:
        root = compose(path.read_bytes(), str(path))
    except OSError as fault:
        raise ConfigErrors([Problem(str(path), 0, "", f"cannot be read: {fault.strerror}")]) from None
    reading = Reading(str(path))
    policy: str | None = None
    tests: tuple[Expectation, ...] = ()
    if isinstance(root, yaml.MappingNode):
        whole = reader(_Expectations)(root, reading, None)
        if isinstance(whole, _Expectations):
            policy, tests = whole.policy, whole.tests
    elif root is not None:
        listed = reader(tuple[Expectation, ...])(root, reading, None)
        tests = tuple(item for item in listed if isinstance(item, Expectation)) if isinstance(listed, tuple) else ()
    if not tests and not reading.problems:
        reading.problems.append(Problem(str(path), 0, "", "holds no expectation"))
    if reading.problems:
        raise ConfigErrors(reading.problems)
    return policy, tests
