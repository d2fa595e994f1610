"""What rules of one policy say beside each other: nothing new, nothing reachable, or two things at once."""

from collections.abc import Iterable, Iterator, Sequence
from ipaddress import ip_address
from itertools import chain, islice

from tidegate.policy.cover import ports_of, rule_covers
from tidegate.policy.finding import Finding, error, warning
from tidegate.policy.index import LabelIndex, SegmentIndex
from tidegate.policy.names import HostName, HostPattern
from tidegate.policy.paths import ANY_PATH, compile_glob
from tidegate.policy.rules import PolicySpec, Rule

__all__ = ["lint_relations"]


class _Place:
    """The rules of one host pattern by what they can cover: every path, a tree of paths, or their like."""

    __slots__ = ("by_shape", "everywhere", "trees")

    def __init__(self) -> None:
        self.everywhere: list[tuple[int, Rule]] = []
        self.trees: SegmentIndex[tuple[int, Rule]] = SegmentIndex()
        self.by_shape: dict[tuple[object, ...], int] = {}

    def broad(self, rule: Rule) -> Iterable[tuple[int, Rule]]:
        """Return the rules that may cover the rule, at most so many that lint stays linear."""
        first = () if not rule.paths else compile_glob(rule.paths[0]).prefix
        trees = self.trees.find(first) if rule.paths else []
        return islice(chain(self.everywhere, trees), _MOST_COMPARED)


_MOST_COMPARED = 32  # broad rules over one rule; more than a hand-written policy has


def _places(rules: Sequence[Rule]) -> LabelIndex[_Place]:
    index: LabelIndex[_Place] = LabelIndex(_Place)
    for position, rule in enumerate(rules):
        place = index.at(rule.host)
        place.by_shape.setdefault(_shape(rule), position)
        if rule.paths is None or ANY_PATH in rule.paths:
            place.everywhere.append((position, rule))
            continue
        for glob in map(compile_glob, rule.paths):
            if glob.tree:
                place.trees.add(glob.prefix, (position, rule))
    return index


def _shape(rule: Rule) -> tuple[object, ...]:
    return (rule.protocol, ports_of(rule), rule.methods, rule.paths, rule.tls, rule.credential, rule.websocket)


def _around(index: LabelIndex[_Place], pattern: HostPattern) -> list[_Place]:
    if pattern.kind == "address":
        return index.find(ip_address(pattern.text))
    # A name just below a suffix is below every pattern that the suffix itself is below, and below it.
    inside = HostName("x." + pattern.text if pattern.kind == "suffix" else pattern.text)
    return index.find(inside)


def lint_relations(spec: PolicySpec) -> Iterator[Finding]:
    """Yield the findings on the rules of one policy together, in time linear in their number."""
    allow, deny = _places(spec.allow), _places(spec.deny)
    tls: dict[tuple[str, int], str] = {}
    for position, rule in enumerate(spec.allow):
        closing = _closing(deny, rule)
        if closing is not None:
            yield warning(rule, "unreachable", f"the deny rule {closing.origin or closing.id} closes all of it")
        other = _shadowing(allow, spec.allow, position)
        if other is not None:
            yield warning(rule, "shadowed", f"{other.origin or other.id} already allows all of it")
        if rule.protocol == "https" and rule.host.kind != "suffix":
            for port in ports_of(rule):
                if tls.setdefault((rule.host.text, port), rule.tls) != rule.tls:
                    yield error(rule, "mixed_tls", f"{rule.host}:{port} is both inspected and passed through")


def _closing(deny: LabelIndex[_Place], rule: Rule) -> Rule | None:
    candidates = (other for place in _around(deny, rule.host) for _, other in place.broad(rule))
    return next((other for other in candidates if rule_covers(other, rule, deny=True)), None)


def _shadowing(allow: LabelIndex[_Place], rules: Sequence[Rule], position: int) -> Rule | None:
    rule = rules[position]
    around = _around(allow, rule.host)
    for place in around:
        for other_position, other in place.broad(rule):
            if other_position == position or not _adds_nothing(rule, other) or not rule_covers(other, rule):
                continue
            # Of two that cover each other, the later one is told.
            if other_position < position or not rule_covers(rule, other):
                return other
    for place in around:
        first = place.by_shape.get(_shape(rule))
        if first is not None and first < position and rules[first].host == rule.host:
            return rules[first] if _adds_nothing(rule, rules[first]) else None
    return None


def _adds_nothing(rule: Rule, other: Rule) -> bool:
    """Tell whether, beside what it lets through, the rule says nothing that the other does not."""
    same_door = set(rule.addresses) <= set(other.addresses) and rule.tls == other.tls
    same_extras = rule.credential in (None, other.credential) and rule.websocket <= other.websocket
    return same_door and same_extras and rule.limits == other.limits and rule.strip == other.strip
