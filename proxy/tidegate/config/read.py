"""Nodes to structs: one reader a type, made once from the struct's own fields.

Unlike a decoder, a reader goes on after an error, so that every problem of a file is told at once,
each with file, line and key path. A reader returns `INVALID` where it reported one.

| annotation | accepted |
|---|---|
| `str`, `bool`, `int`, `float` | that YAML 1.2 value, an int also for a float; bounds from `msgspec.Meta` |
| `Literal[…]` | one of the words |
| `Annotated[T, Shape]` | what `Shape.parse` makes of it |
| `T \\| None` | the same, or null |
| `tuple[T, ...]` | a list, or one single `T` |
| `dict[str, T]` | a mapping of the user's own names |
| a struct | a mapping of exactly its fields |
| `str \\| Struct` | either |

A struct with an invalid field is dropped from its list, unless it says `BEST_EFFORT`: then the field
keeps its default, so that the checks of the other fields still speak in the same run.
"""

import functools
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import msgspec
import yaml

from tidegate.config.problem import Problem
from tidegate.config.source import plain_value
from tidegate.errors import ConfigError
from tidegate.nearest import did_you_mean

__all__ = ["INVALID", "Path", "Reading", "Shape", "path_text", "reader"]


class _Invalid:
    def __repr__(self) -> str:
        return "INVALID"


INVALID: Final = _Invalid()

# A linked list, innermost first: made for every node, turned into text only for a problem.
type Path = tuple["Path", str | int] | None
type _Reader = Callable[[yaml.Node, "Reading", Path], object]


@dataclass(frozen=True, slots=True)
class Shape:
    """A text or value form that a type cannot say. `parse` raises `ConfigError` or `ValueError`."""

    parse: Callable[[object], object]
    words: str
    """What the form is, for messages and the reference page."""
    several: bool = False
    """Whether a list of it may stand there as well, and `off` (false, null) for none."""


def path_text(path: Path) -> str:
    """Return `policies.triage.allow[2].host`."""
    parts: list[str] = []
    while path is not None:
        path, step = path
        parts.append(f"[{step}]" if isinstance(step, int) else f".{step}")
    return "".join(reversed(parts)).removeprefix(".")


class Reading:
    """One file being read: its name and the problems found so far."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.problems: list[Problem] = []

    def refuse(self, node: yaml.Node | None, path: Path, message: str) -> _Invalid:
        """Note a problem at `node` and return `INVALID`."""
        line = node.start_mark.line + 1 if node is not None else 0
        self.problems.append(Problem(self.file, line, path_text(path), message))
        return INVALID

    def entries(self, node: yaml.Node, path: Path) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        """Return key -> (key node, value node) of a mapping; keys twice and odd keys are problems."""
        found: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self.refuse(key_node, path, "a key must be text")
                continue
            key = key_node.value
            if key in found:
                first = found[key][0].start_mark.line + 1
                self.refuse(key_node, (path, key), f"the key is given twice (first in line {first})")
                continue
            found[key] = (key_node, value_node)
        return found


_cache: dict[object, _Reader] = {}


def reader(annotation: object) -> _Reader:
    """Return the reader of a type; `TypeError` for a type this module does not know."""
    made = _cache.get(annotation)
    if made is None:
        made = _cache[annotation] = _make(annotation)
    return made


def _make(annotation: Any) -> _Reader:
    while isinstance(annotation, _ALIAS):
        annotation = annotation.__value__
    origin, args = get_origin(annotation), get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return _struct(annotation)
    if annotation in _SCALARS:
        return _scalar(*_SCALARS[annotation])
    if origin is Annotated:
        return _annotated(args[0], args[1:])
    if origin is Literal:
        return _literal(args)
    if origin in (types.UnionType, Union):
        return _union(args)
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        return _list(reader(args[0]), whole=not _is_struct(args[0]))
    if origin is dict and args[0] is str:
        return _dict(reader(args[1]))
    raise TypeError(f"no reader for {annotation!r}")


type _Alias = int
_ALIAS: Final = type(_Alias)
_SCALARS: Final[dict[object, tuple[tuple[type, ...], str]]] = {
    str: ((str,), "text"),
    bool: ((bool,), "true or false"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
}


def _value(node: yaml.Node) -> object:
    return plain_value(node) if isinstance(node, yaml.ScalarNode) else INVALID


def _scalar(kinds: tuple[type, ...], words: str) -> _Reader:
    def read(node: yaml.Node, reading: Reading, path: Path) -> object:
        value = _value(node)
        # type() and not isinstance(): true is no whole number.
        if type(value) not in kinds:
            quote = ": put it in quotes" if kinds == (str,) and isinstance(value, int | float | bool) else ""
            return reading.refuse(node, path, f"must be {words}{quote}")
        return float(value) if float in kinds and isinstance(value, int) else value

    return read


def _annotated(inner: object, marks: tuple[object, ...]) -> _Reader:
    shape = next((mark for mark in marks if isinstance(mark, Shape)), None)
    if shape is not None:
        return _several(shape) if shape.several else _shaped(shape)
    meta = next((mark for mark in marks if isinstance(mark, msgspec.Meta)), None)
    return reader(inner) if meta is None else _bounded(reader(inner), meta)


def _shaped(shape: Shape) -> _Reader:
    def read(node: yaml.Node, reading: Reading, path: Path) -> object:
        value = _value(node)
        if value is INVALID:
            return reading.refuse(node, path, f"must be {shape.words}")
        try:
            return shape.parse(value)
        except ConfigError as fault:
            return reading.refuse(node, path, f"{fault.what} ({fault.hint})" if fault.hint else fault.what)
        except (ValueError, TypeError):
            return reading.refuse(node, path, f"must be {shape.words}")

    return read


def _several(shape: Shape) -> _Reader:
    one = _list(_shaped(shape), whole=True)

    def read(node: yaml.Node, reading: Reading, path: Path) -> object:
        if not isinstance(node, yaml.SequenceNode) and _value(node) in ("off", None, False):
            return ()
        return one(node, reading, path)

    return read


def _bounded(inner: _Reader, meta: msgspec.Meta) -> _Reader:
    low, high = meta.ge, meta.le

    def read(node: yaml.Node, reading: Reading, path: Path) -> object:
        value = inner(node, reading, path)
        if not isinstance(value, int | float):
            return value
        if low is not None and value < low:
            return reading.refuse(node, path, f"must be at least {low:g}")
        if high is not None and value > high:
            return reading.refuse(node, path, f"must be at most {high:g}")
        return value

    return read


def _literal(words: tuple[object, ...]) -> _Reader:
    listed = ", ".join(map(str, words))

    def read(node: yaml.Node, reading: Reading, path: Path) -> object:
        value = _value(node)
        # type() as well: in Python, True == 1.
        if any(value == word and type(value) is type(word) for word in words):
            return value
        hint = did_you_mean(value, map(str, words)) if isinstance(value, str) else ""
        return reading.refuse(node, path, f"must be one of {listed}{hint}")

    return read


def _union(args: tuple[object, ...]) -> _Reader:
    nullable = type(None) in args
    readers = [(arg, reader(arg)) for arg in args if arg is not type(None)]
    mapping = next((read for arg, read in readers if isinstance(arg, type) and issubclass(arg, msgspec.Struct)), None)
    other = next((read for _, read in readers if read is not mapping), None)

    def read(node: yaml.Node, reading: Reading, path: Path) -> object:
        if nullable and _value(node) is None:
            return None
        chosen = mapping if mapping and (other is None or isinstance(node, yaml.MappingNode)) else other
        if chosen is None:
            return reading.refuse(node, path, "must be empty")
        return chosen(node, reading, path)

    return read


def _is_struct(annotation: object) -> bool:
    parts = get_args(annotation) or (annotation,)
    return any(isinstance(part, type) and issubclass(part, msgspec.Struct) for part in parts)


def _list(item: _Reader, *, whole: bool) -> _Reader:
    def read(node: yaml.Node, reading: Reading, path: Path) -> object:
        if not isinstance(node, yaml.SequenceNode):
            if _value(node) is None:
                return reading.refuse(node, path, "must be a list")
            one = item(node, reading, path)
            return one if one is INVALID else (one,)
        items = [item(child, reading, (path, index)) for index, child in enumerate(node.value)]
        valid = tuple([value for value in items if value is not INVALID])
        # Structs that could be read go on, so that later checks find their problems in the same run.
        return valid if len(valid) == len(items) or not whole else INVALID

    return read


def _dict(item: _Reader) -> _Reader:
    def read(node: yaml.Node, reading: Reading, path: Path) -> object:
        if _value(node) is None:
            return {}
        if not isinstance(node, yaml.MappingNode):
            return reading.refuse(node, path, "must be a mapping")
        read = {key: item(value, reading, (path, key)) for key, (_, value) in reading.entries(node, path).items()}
        return {key: value for key, value in read.items() if value is not INVALID}

    return read


# Fields by which a struct knows where it stands in the file; no one can write them.
_PLACE: Final = frozenset({"line_", "key_"})


@functools.cache
def _fields(struct: type[msgspec.Struct]) -> tuple[dict[str, tuple[str, _Reader]], tuple[str, ...]]:
    """Return key -> (field, reader), and the keys that must be there; asked late, since structs may hold each other."""
    fields = msgspec.structs.fields(struct)
    known = {field.encode_name: (field.name, reader(field.type)) for field in fields}
    return known, tuple(field.encode_name for field in fields if field.required)


def _struct(struct: type[msgspec.Struct]) -> _Reader:
    best_effort = getattr(struct, "BEST_EFFORT", False)
    placed = _PLACE.issubset(struct.__struct_fields__)

    def read(node: yaml.Node, reading: Reading, path: Path) -> object:
        if not isinstance(node, yaml.MappingNode):
            return reading.refuse(node, path, "must be a mapping")
        known, required = _fields(struct)
        values: dict[str, object] = {}
        valid = True
        entries = reading.entries(node, path)
        for key, (key_node, value_node) in entries.items():
            entry = known.get(key)
            if entry is None or key in _PLACE:
                hint = did_you_mean(key, known.keys() - _PLACE)
                reading.refuse(key_node, (path, key), f"unknown key{hint}")
                valid = valid and best_effort
                continue
            value = entry[1](value_node, reading, (path, key))
            if value is not INVALID:
                values[entry[0]] = value
            elif key in required or not best_effort:
                valid = False
        for key in required:
            if known[key][0] not in values and key not in entries:
                reading.refuse(node, (path, key), "is missing")
                valid = False
        if not valid:
            return INVALID
        if placed:
            values["line_"] = node.start_mark.line + 1
            values["key_"] = path_text(path)
        return struct(**values)

    return read
