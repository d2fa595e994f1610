from typing import Annotated, ClassVar, Literal

import msgspec
import pytest

from tidegate.config.read import INVALID, Reading, Shape, reader
from tidegate.config.source import compose
from tidegate.nearest import did_you_mean


def _even(value: object) -> object:
    if not isinstance(value, int) or value % 2:
        raise ValueError
    return value


class Leaf(msgspec.Struct, frozen=True):
    name: str
    size: Annotated[int, msgspec.Meta(ge=1, le=9)] = 1
    line_: int = 0
    key_: str = ""


class Tree(msgspec.Struct, frozen=True):
    BEST_EFFORT: ClassVar[bool] = True

    leaves: tuple[Leaf, ...] = ()
    words: tuple[str, ...] | None = None
    kind: Literal["a", "b"] = "a"
    ratio: float = 0.5
    flag: bool = False
    even: Annotated[int, Shape(_even, "an even number")] = 0
    either: tuple[str | Leaf, ...] = ()
    named: dict[str, Leaf] = {}


def read(text: str) -> tuple[object, list[str]]:
    reading = Reading("f")
    value = reader(Tree)(compose(text.encode(), "f") or pytest.fail("empty"), reading, None)
    return value, [f"{problem.line} {problem.key}: {problem.message}" for problem in reading.problems]


def test_reads_every_kind_of_value() -> None:
    tree, problems = read("{leaves: [{name: x, size: 2}], words: one, kind: b, ratio: 1, flag: true, even: 4}")
    assert problems == []
    assert isinstance(tree, Tree)
    assert tree.leaves[0].size == 2
    assert (tree.words, tree.kind, tree.ratio, tree.flag, tree.even) == (("one",), "b", 1.0, True, 4)


def test_a_struct_knows_where_it_stands() -> None:
    tree, _ = read("kind: a\nleaves:\n  - name: x\n  - name: y\n")
    assert isinstance(tree, Tree)
    assert [(leaf.line_, leaf.key_) for leaf in tree.leaves] == [(3, "leaves[0]"), (4, "leaves[1]")]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("kindd: a", "1 kindd: unknown key (did you mean kind?)"),
        ("line_: 3", "1 line_: unknown key"),
        ("leaves: [{name: x, line_: 3}]", "1 leaves[0].line_: unknown key"),
        ("leaves: [{size: 2}]", "1 leaves[0].name: is missing"),
        ("leaves: [{name: x, size: 10}]", "1 leaves[0].size: must be at most 9"),
        ("leaves: [{name: x, size: 0}]", "1 leaves[0].size: must be at least 1"),
        ("leaves: [{name: x, size: true}]", "1 leaves[0].size: must be a whole number"),
        ("leaves: [{name: 12}]", "1 leaves[0].name: must be text: put it in quotes"),
        ("leaves: null", "1 leaves: must be a list"),
        ("leaves: [x]", "1 leaves[0]: must be a mapping"),
        ("kind: aa", "1 kind: must be one of a, b (did you mean a?)"),
        ("ratio: x", "1 ratio: must be a number"),
        ("flag: yes", "1 flag: must be true or false"),
        ("even: 3", "1 even: must be an even number"),
        ("even: [2]", "1 even: must be an even number"),
        ("kind: a\nkind: b", "2 kind: the key is given twice (first in line 1)"),
        ("? [a]\n: 1", "1 : a key must be text"),
        ("named: []", "1 named: must be a mapping"),
        ("[]", "1 : must be a mapping"),
    ],
)
def test_tells_line_key_and_what_is_wrong(text: str, problem: str) -> None:
    _, problems = read(text)
    assert problems == [problem]


def test_tells_all_problems_at_once() -> None:
    tree, problems = read("kind: x\nflag: 3\nleaves:\n  - {nme: x}\n  - {name: y}\n")
    assert [problem.split(":")[0] for problem in problems] == [
        "1 kind",
        "2 flag",
        "4 leaves[0].nme",
        "4 leaves[0].name",
    ]
    assert isinstance(tree, Tree)
    assert [leaf.name for leaf in tree.leaves] == ["y"]


def test_a_list_of_values_with_an_invalid_one_is_invalid_whole() -> None:
    # Half of a list of methods or paths would be another rule than the one that was written.
    reading = Reading("f")
    node = compose(b"[a, 1]", "f")
    assert node is not None
    assert reader(tuple[str, ...])(node, reading, None) is INVALID


def test_either_form_is_read() -> None:
    tree, problems = read("either: [x, {name: y}]")
    assert problems == []
    assert isinstance(tree, Tree)
    assert tree.either[0] == "x"
    assert isinstance(tree.either[1], Leaf)


def test_did_you_mean_says_nothing_without_a_near_word() -> None:
    assert did_you_mean("zzz", ["methods"]) == ""
