import pytest
import yaml

from tidegate.config.problem import ConfigErrors
from tidegate.config.source import MAX_BYTES, compose, plain_value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("False", False),
        ("~", None),
        ("12", 12),
        ("1.5", 1.5),
        ("no", "no"),
        ("on", "on"),
        ("off", "off"),
        ("22:22", "22:22"),
        ("0x10", "0x10"),
        ("1_000", "1_000"),
        ("2030-01-01", "2030-01-01"),
        ("'12'", "12"),
        ('"true"', "true"),
    ],
)
def test_scalars_follow_yaml_1_2(text: str, value: object) -> None:
    node = compose(f"- {text}".encode(), "f")
    assert isinstance(node, yaml.SequenceNode)
    found = plain_value(node.value[0])
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("data", "line", "words"),
    [
        (b"a: 1\nb: &x 1\nc: *x\n", 2, "aliases"),
        (b"a: &x [*x]\n", 1, "aliases"),
        (b"a: !!python/object/apply:os.system [id]\n", 1, "tag"),
        (b"a: !secret x\n", 1, "tag"),
        (b"a: 1\n---\nb: 1\n", 2, "single document"),
        (b"a: 1\nb: [1\nc: 2\n", 3, "not YAML"),
        (b"a: 1\nb: \xff\n", 2, "UTF-8"),
        (b"a: \x00", 0, "not YAML"),
        (b"{" * 33 + b"}" * 33, 0, "deeper than 32"),
        (b"[" * 200_000, 1, "not YAML"),
        (b" " * (MAX_BYTES + 1), 0, "larger"),
    ],
    ids=[
        "alias",
        "recursive",
        "python-tag",
        "own-tag",
        "documents",
        "syntax",
        "utf8",
        "nul",
        "deep",
        "deeper",
        "large",
    ],
)
def test_refuses_what_a_configuration_does_not_need(data: bytes, line: int, words: str) -> None:
    with pytest.raises(ConfigErrors) as caught:
        compose(data, "f.yaml")
    problem = caught.value.problems[0]
    assert (problem.file, problem.line) == ("f.yaml", line)
    assert words in problem.message


def test_a_byte_order_mark_is_no_part_of_the_first_key() -> None:
    node = compose(b"\xef\xbb\xbfversion: 1\n", "f")
    assert isinstance(node, yaml.MappingNode)
    assert node.value[0][0].value == "version"


def test_an_empty_file_is_no_node() -> None:
    assert compose(b"# nothing\n", "f") is None
