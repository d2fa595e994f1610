"""What is measured without a network: one decision, loading a large policy, the command's start."""

import dataclasses
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Callable
from pathlib import Path

from tidegate.config.load import load
from tidegate.policy.decide import Ask, Policy, compile_policy, decide
from tidegate.policy.names import parse_host
from tidegate.policy.paths import parse_target
from tidegate.policy.reasons import Reason

__all__ = ["LARGE", "SMALL", "DecisionCost", "decision_cost", "large_rules", "load_seconds", "version_seconds"]

SMALL, LARGE = 10, 10_000


@dataclasses.dataclass(frozen=True)
class DecisionCost:
    """Microseconds for one decision with few rules and with many: the same asks, the dearest of them."""

    small_us: float
    large_us: float


def large_rules(count: int) -> list[dict[str, object]]:
    """Return `count` rules of mixed kinds: exact names, wildcards, methods, paths."""
    rules: list[dict[str, object]] = []
    for number in range(count):
        name = f"svc{number}.zone{number % 97}.example.net"
        rules.append({"host": f"*.{name}" if number % 5 == 4 else name, "methods": ["GET", "POST"]})
        if number % 3 == 0:
            rules[-1]["paths"] = ["/v1/*/items/**", "/health"]
    return rules


def decision_cost() -> DecisionCost:
    """Return what the dearest of several decisions costs, with 10 rules and with 10,000."""
    policies = {count: _policy(count) for count in (SMALL, LARGE)}
    asks = [
        _ask("svc3.zone3.example.net", "/v1/a/items/b/c"),
        _ask("svc3.zone3.example.net", "/v2/a"),
        _ask("deep.below.svc4.zone4.example.net", "/"),
        _ask("nowhere.example.org", "/"),
    ]
    # Alternating, since the clock of the machine drifts.
    rounds = [{count: max(_cost(ask, policy) for ask in asks) for count, policy in policies.items()} for _ in range(7)]
    return DecisionCost(*(statistics.median(costs[count] for costs in rounds) for count in (SMALL, LARGE)))


def load_seconds(count: int = LARGE) -> float:
    """Return the seconds from a file with `count` rules to compiled policies."""
    began = time.perf_counter()
    _policy(count)
    return time.perf_counter() - began


def version_seconds(repeat: int = 7) -> float:
    """Return the median of what `tidegate --version` takes."""
    program = str(Path(sys.executable).with_name("tidegate"))
    return _median(repeat, lambda: subprocess.run([program, "--version"], check=True, capture_output=True))


def _median(repeat: int, action: Callable[[], object]) -> float:
    return statistics.median(timeit.repeat(action, number=1, repeat=repeat))


def _policy(count: int) -> Policy:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tidegate.yaml"
        lines = ["version: 1", "policies:", "  large:", "    allow:"]
        for rule in large_rules(count):
            # A JSON-like flow mapping is YAML; so no dumper is measured or waited for.
            lines.append("    - " + str(rule).replace("'", '"'))
        file.write_text("\n".join(lines) + "\n")
        settings = load(file, environ={}, flags={"state_dir": folder})
    return compile_policy(settings.policies["large"])


def _ask(host: str, target: str) -> Ask:
    name, path = parse_host(host), parse_target(target)
    if isinstance(name, Reason) or isinstance(path, Reason):
        raise TypeError(f"{host}{target} is no ask")
    return Ask(host=name, port=443, protocol="https", method="GET", path=path)


def _cost(ask: Ask, policy: Policy, number: int = 2000) -> float:
    now = time.time()
    return timeit.timeit(lambda: decide(ask, policy, now), number=number) / number * 1e6
