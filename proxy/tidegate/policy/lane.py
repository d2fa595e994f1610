"""The rules of one side of a policy, laid out so that a look-up touches only those that can apply.

A `Table` leads from a host to its buckets, a bucket from (protocol, port) to a lane, a lane from
method and path to a rule:

| step          | structure                     | cost                              |
|---------------|-------------------------------|-----------------------------------|
| host          | `LabelIndex`                  | labels that rules name            |
| scheme, port  | dict                          | one look-up (deny: up to four)    |
| method        | dict, rules not path-scoped   | two look-ups                      |
| path          | `SegmentIndex` by its literal | globs that share the path's own   |
|               | leading segments              | leading segments                  |

Where several rules allow one request, one is chosen, always the same: the more specific host,
then one with a credential, then the longer literal path, then the exact path, then named methods,
then file order.
"""

from collections.abc import Iterable

from tidegate.policy.index import LabelIndex, SegmentIndex
from tidegate.policy.paths import ANY_PATH, CompiledGlob, Path, compile_glob
from tidegate.policy.rules import Rule

__all__ = ["Bucket", "Lane", "Match", "Table"]

type _Order = tuple[bool, int, bool, bool, int]


class Match:
    """A rule at its place in the order of choice, with one glob of its own or none."""

    __slots__ = ("glob", "methods", "order", "rule")

    def __init__(self, rule: Rule, glob: CompiledGlob | None, position: int) -> None:
        self.rule = rule
        self.glob = glob
        self.methods = None if rule.methods is None else frozenset(rule.methods)
        depth = -1 if glob is None else len(glob.prefix)
        inexact = glob is None or not glob.exact
        self.order: _Order = (rule.credential is None, -depth, inexact, rule.methods is None, position)


class _ByMethod:
    """The first rule for each method."""

    __slots__ = ("_any", "_named")

    def __init__(self) -> None:
        self._named: dict[str, Match] = {}
        self._any: Match | None = None

    def add(self, match: Match) -> None:
        if match.methods is None:
            self._any = _first(self._any, match)
        else:
            for method in match.methods:
                self._named[method] = _first(self._named.get(method), match)

    def get(self, method: str, *, by_default: bool) -> Match | None:
        named = self._named.get(method)
        if self._any is None or not by_default:
            return named
        return self._any if named is None or self._any.order < named.order else named

    def every(self) -> Match | None:
        return self._any


def _first(one: Match | None, other: Match) -> Match:
    return other if one is None or other.order < one.order else one


class Lane:
    """The rules of one host pattern, protocol and port."""

    __slots__ = ("_open", "_scoped", "_scoped_by_method", "first", "has_scoped")

    def __init__(self) -> None:
        self._open = _ByMethod()
        self._scoped: SegmentIndex[Match] = SegmentIndex()
        self._scoped_by_method = _ByMethod()
        self.first: Match | None = None
        self.has_scoped = False

    def add(self, rule: Rule, position: int) -> None:
        """Put the rule in."""
        if rule.paths is None or ANY_PATH in rule.paths:
            self._put(Match(rule, None, position))
            return
        for path in rule.paths:
            self._put(Match(rule, compile_glob(path), position))

    def _put(self, match: Match) -> None:
        inspected = self.first is None or match.rule.tls == self.first.rule.tls
        if inspected:
            self.first = _first(self.first, match)
        elif match.rule.tls == "inspect":  # never less inspection than one of the rules asks for
            self.first = match
        if match.glob is None:
            self._open.add(match)
            return
        self.has_scoped = True
        self._scoped.add(match.glob.prefix, match)
        self._scoped_by_method.add(match)

    def pick(self, method: str, path: Path | None, *, by_default: bool) -> Match | None:
        """Return the chosen rule for the request; `by_default`: rules without methods take this one."""
        best = self._open.get(method, by_default=by_default)
        if not self.has_scoped or path is None or path.ambiguous:
            return best
        for match in self._scoped.find(path.segments):
            named = by_default if match.methods is None else method in match.methods
            if named and (best is None or match.order < best.order):
                glob = match.glob
                if glob is not None and glob.matches(path.segments):
                    best = match
        return best

    def takes_method(self, method: str, *, by_default: bool) -> Match | None:
        """Return a path-scoped rule that takes the method on some path."""
        return self._scoped_by_method.get(method, by_default=by_default)

    def whole(self) -> Match | None:
        """Return a rule for every method and path."""
        return self._open.every()


class Bucket:
    """The lanes of one host pattern."""

    __slots__ = ("lanes", "ports")

    def __init__(self) -> None:
        self.lanes: dict[tuple[str, int], Lane] = {}
        self.ports: set[int] = set()

    def add(self, rule: Rule, ports: Iterable[int], position: int) -> None:
        """Put the rule in at each of its ports; port 0 stands for every port."""
        for port in ports:
            self.ports.add(port)
            self.lanes.setdefault((rule.protocol, port), Lane()).add(rule, position)


class Table(LabelIndex[Bucket]):
    """All buckets of one side of a policy."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(Bucket)
