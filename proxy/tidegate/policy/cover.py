"""Whether one rule's requests are all requests of another: what shadowing and scopes are judged by.

Sound, not complete: «covers» is never said wrongly, and may be missed between globs that only a
full containment test would compare.
"""

from collections.abc import Iterable

from tidegate.policy.paths import ANY_PATH, PathGlob, compile_glob
from tidegate.policy.rules import DEFAULT_PORTS, Rule

__all__ = ["glob_covers", "methods_cover", "paths_cover", "ports_of", "rule_covers"]


def ports_of(rule: Rule) -> frozenset[int]:
    """Return the rule's ports with the protocol's default in place of none; empty is every port."""
    return frozenset(rule.ports or DEFAULT_PORTS.get(rule.protocol, ()))


def methods_cover(wide: tuple[str, ...] | None, narrow: tuple[str, ...] | None) -> bool:
    """Tell whether every method of `narrow` is one of `wide`; None is all but CONNECT and TRACE."""
    if wide is None:
        return narrow is None or not {"CONNECT", "TRACE"} & set(narrow)
    return narrow is not None and set(narrow) <= set(wide)


def glob_covers(wide: PathGlob, narrow: PathGlob) -> bool:
    """Tell whether every path of `narrow` is a path of `wide`."""
    if wide in (narrow, ANY_PATH):
        return True
    outer, inner = compile_glob(wide), compile_glob(narrow)
    if inner.exact:
        return outer.matches(inner.prefix)
    return outer.tree and inner.prefix[: len(outer.prefix)] == outer.prefix


def paths_cover(wide: tuple[PathGlob, ...] | None, narrow: tuple[PathGlob, ...] | None) -> bool:
    """Tell whether every path of `narrow` is a path of `wide`; None is every path."""
    if wide is None or ANY_PATH in wide:
        return True
    return narrow is not None and all(_any_covers(wide, glob) for glob in narrow)


def _any_covers(wide: Iterable[PathGlob], narrow: PathGlob) -> bool:
    return any(glob_covers(glob, narrow) for glob in wide)


def rule_covers(wide: Rule, narrow: Rule, *, deny: bool = False) -> bool:
    """Tell whether every request of the allow rule `narrow` is one of `wide`; `deny`: `wide` is a deny rule."""
    if not wide.host.covers(narrow.host):
        return False
    if wide.protocol not in (narrow.protocol, "any"):
        return False
    if not (deny and not wide.ports) and not ports_of(narrow) <= ports_of(wide):
        return False
    methods = (deny and wide.methods is None) or methods_cover(wide.methods, narrow.methods)
    return methods and paths_cover(wide.paths, narrow.paths)
