"""The work of a decision does not grow with the policy. Work is counted in lines run, never in time."""

import sys
from collections.abc import Callable
from types import FrameType

import pytest

from tidegate.policy import decide as module
from tidegate.policy.decide import Ask, Policy, compile_policy, decide
from tidegate.policy.names import HostName, HostPattern
from tidegate.policy.paths import Path, parse_glob, parse_target
from tidegate.policy.rules import PolicySpec, Rule

type Maker = Callable[[int], Rule]


def named(host: str, i: int, **fields: object) -> Rule:
    kind = "suffix" if host.startswith("*.") else "name"
    pattern = HostPattern(kind, host.removeprefix("*."))  # type: ignore[arg-type]
    return Rule(id=f"r{i}", host=pattern, **fields)  # type: ignore[arg-type]


SHAPES: dict[str, Maker] = {
    "hosts": lambda i: named(f"h{i}.example{i % 7}.test", i),
    "siblings": lambda i: named(f"h{i}.api.test", i),
    "wildcards": lambda i: named(f"*.w{i}.test", i),
    "trees_on_the_host": lambda i: named("api.test", i, paths=(parse_glob(f"/repos/o{i}/**"),)),
    "exact_paths": lambda i: named("api.test", i, paths=(parse_glob(f"/p/{i}"),)),
    "methods": lambda i: named("api.test", i, methods=(f"M{i}",)),
    "ports": lambda i: named("api.test", i, ports=(1024 + i,)),
    "parents": lambda i: named("*.test", i, ports=(1024 + i,)),
}


def lines_run(policy: Policy, ask: Ask) -> int:
    root = module.__file__.rpartition("/")[0]
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> object:
        nonlocal count
        if not frame.f_code.co_filename.startswith(root):
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        decide(ask, policy, 0.0)
    finally:
        sys.settrace(before)
    return count


def asks() -> dict[str, Ask]:
    def one(host: str, target: str, method: str | None = "GET") -> Ask:
        path = parse_target(target)
        assert isinstance(path, Path)
        return Ask(HostName(host), 443, "https", method, path)

    return {
        "allowed": one("api.test", "/repos/acme/x"),
        "path_denied": one("api.test", "/elsewhere/x"),
        "ambiguous": one("api.test", "/repos/acme/../x"),
        "connect": one("api.test", "/", None),
        "unknown": one("evil.invalid", "/"),
        "below": one("x.y.w.test", "/"),
        "many_labels": one(".".join("a" * 120) + ".test", "/"),
        "many_segments": one("api.test", "/repos/acme" + "/x" * 500),
    }


def build(make: Maker, count: int, *, side: str) -> Policy:
    base = named("api.test", -1, methods=("GET",), paths=(parse_glob("/repos/acme/**"),))
    if side == "deny":
        many = tuple(make(i) for i in range(count))
        return compile_policy(PolicySpec("p", allow=(base,), deny=many))
    return compile_policy(PolicySpec("p", allow=(base, *(make(i) for i in range(count)))))


@pytest.mark.parametrize("side", ["allow", "deny"])
@pytest.mark.parametrize("shape", SHAPES)
def test_decide_does_the_same_work_for_ten_and_for_thousands_of_rules(shape: str, side: str) -> None:
    few, many = build(SHAPES[shape], 10, side=side), build(SHAPES[shape], 3000, side=side)
    for name, ask in asks().items():
        small, large = lines_run(few, ask), lines_run(many, ask)
        assert small > 0, "the counter counts"
        assert large <= small, name


def test_decide_does_the_same_work_for_any_number_of_labels() -> None:
    policy = build(SHAPES["wildcards"], 10, side="allow")
    short, long = (Ask(HostName(".".join("a" * n) + ".w1.test"), 443, "https") for n in (2, 110))
    assert lines_run(policy, long) == lines_run(policy, short)
