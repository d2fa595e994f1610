"""YAML text to nodes that know their line.

PyYAML's C composer builds the nodes (ten times faster than any loader with round trip), but with our
own resolver in place of its YAML 1.1 one, in which `no` is false and `22:22` a number. What a
configuration does not need is refused here, so that a file means one thing only:

| in the file | here |
|---|---|
| a key twice, a key that is not text | problem |
| tags (`!!python/…`), anchors, aliases, merge keys | problem |
| a second document, more than 32 levels, 16 MiB or a million nodes | problem |
| `yes`, `no`, `on`, `off` | text |
"""

import re
from typing import Final

import yaml

from tidegate.config.problem import ConfigErrors, Problem

__all__ = ["MappingNode", "Node", "ScalarNode", "SequenceNode", "compose", "plain_value"]

MAX_BYTES: Final = 16 * 1024 * 1024
MAX_DEPTH: Final = 32
MAX_NODES: Final = 1_000_000

type Node = yaml.Node
type ScalarNode = yaml.ScalarNode
type SequenceNode = yaml.SequenceNode
type MappingNode = yaml.MappingNode

_TAGS: Final = {yaml.ScalarNode: "str", yaml.SequenceNode: "seq", yaml.MappingNode: "map"}


class _Bounds(yaml.YAMLError):
    """A bound of this module is passed; raised out of the composer, which has no limits of its own."""


class _Loader(yaml.CLoader):
    """The C composer with a resolver that only tells plain scalars from quoted ones."""

    depth = 0
    nodes = 0

    def descend_resolver(self, current_node: object, current_index: object) -> None:
        self.depth += 1
        self.nodes += 1
        # The C composer recurses on the C stack: ten thousand «[» would end the process.
        if self.depth > MAX_DEPTH:
            raise _Bounds(f"nested deeper than {MAX_DEPTH} levels")
        if self.nodes > MAX_NODES:
            raise _Bounds(f"more than {MAX_NODES} values")

    def ascend_resolver(self) -> None:
        self.depth -= 1

    def resolve(self, kind: type[yaml.Node], value: object, implicit: object) -> str:
        if kind is yaml.ScalarNode and isinstance(implicit, tuple) and implicit[0]:
            return "plain"
        return _TAGS[kind]


def compose(data: bytes, file: str) -> yaml.Node | None:
    """Return the root node of `data` (None: an empty file); raise `ConfigErrors` otherwise."""
    if len(data) > MAX_BYTES:
        raise ConfigErrors([Problem(file, 0, "", f"larger than {MAX_BYTES} bytes")])
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        line = data.count(b"\n", 0, fault.start) + 1
        raise ConfigErrors([Problem(file, line, "", "not UTF-8 text")]) from None
    try:
        loader = _Loader(text)
        try:
            root: yaml.Node | None = loader.get_single_node()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as fault:
        mark = fault.problem_mark or fault.context_mark
        what = " ".join(part for part in (fault.context, fault.problem) if part)
        raise ConfigErrors([Problem(file, mark.line + 1 if mark else 0, "", f"not YAML: {what}")]) from None
    except (yaml.YAMLError, UnicodeError, RecursionError) as fault:
        raise ConfigErrors([Problem(file, 0, "", f"not YAML: {' '.join(str(fault).split())}")]) from None
    # Neither can be there without its sign; the walk over a large file is worth sparing.
    if root is not None and ("&" in text or "!" in text):
        _refuse_sharing(root, file)
    return root


def _refuse_sharing(root: yaml.Node, file: str) -> None:
    """Refuse aliases and tags: with them a small file can be a huge one, and one line two."""
    seen: set[int] = set()
    problems: list[Problem] = []
    stack = [root]
    while stack:
        node = stack.pop()
        if id(node) in seen:
            problems.append(
                Problem(
                    file,
                    node.start_mark.line + 1,
                    "",
                    "anchors and aliases (&name, *name) are not supported: write it out",
                )
            )
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            for pair in node.value:
                stack.extend(pair)
        elif isinstance(node, yaml.SequenceNode):
            stack.extend(node.value)
        if node.tag not in _PLAIN_TAGS:
            problems.append(Problem(file, node.start_mark.line + 1, "", f"the tag {node.tag} is not supported"))
    if problems:
        raise ConfigErrors(problems)


_PLAIN_TAGS: Final = frozenset({"plain", "str", "seq", "map"})
_INT: Final = re.compile(r"[-+]?[0-9]{1,18}")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]{1,18}(\.[0-9]*)?)([eE][-+]?[0-9]{1,3})?")
_WORDS: Final[dict[str, bool | None]] = {
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
    "null": None,
    "Null": None,
    "NULL": None,
    "~": None,
    "": None,
}


def plain_value(node: yaml.ScalarNode) -> str | int | float | bool | None:
    """Return the scalar's value by the YAML 1.2 core schema; quoted scalars are always text."""
    text: str = node.value
    if node.tag != "plain":
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text
