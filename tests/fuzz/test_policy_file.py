"""Invariant: any bytes as a configuration give settings or `ConfigErrors`, and never a rule that nobody wrote."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tidegate.config.form import FileForm, LockForm, PolicyForm
from tidegate.config.load import load
from tidegate.config.model import Settings
from tidegate.config.problem import ConfigErrors
from tidegate.config.read import Reading, reader
from tidegate.config.source import compose
from tidegate.policy.decide import compile_policy

_fixture = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)

_KEYS = [
    "version",
    "policies",
    "allow",
    "deny",
    "use",
    "host",
    "protocol",
    "ports",
    "methods",
    "paths",
    "credential",
    "addresses",
    "tls",
    "strip",
    "websocket",
    "limits",
    "credentials",
    "source",
    "env",
    "file",
    "command",
    "for",
    "place",
    "header",
    "format",
    "basic",
    "query",
    "sessions",
    "policy",
    "from",
    "owner",
    "listen",
    "http",
    "placeholder",
    "shape",
    "preset",
    "tenant",
    "budgets",
    "session",
    "unsafe_observe_until",
    "unsafe_wildcard",
    "registries",
    "line_",
    "key_",
    "<<",
]
_VALUES = st.one_of(
    st.sampled_from(
        ["a.example", "*.a.example", "*", "10.0.0.1", "GET", "/a/**", "/../", "off", "https", "1", "p", "{x}"]
    ),
    st.text(max_size=12),
    st.integers(),
    st.floats(allow_nan=True),
    st.booleans(),
    st.none(),
)
_TREES = st.recursive(
    _VALUES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(_KEYS) | st.text(max_size=4), inner, max_size=5)
    ),
    max_leaves=25,
)


def _flow(tree: object) -> str:
    """Write the tree as YAML flow, by hand: what a writer would refuse is of interest here."""
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{_quote(str(key))}: {_flow(value)}" for key, value in tree.items()) + "}"
    if isinstance(tree, list):
        return "[" + ", ".join(map(_flow, tree)) + "]"
    return _quote(tree) if isinstance(tree, str) else str(tree).lower().replace("none", "null")


def _quote(text: str) -> str:
    return "'" + "".join(letter for letter in text if letter.isprintable()).replace("'", "''") + "'"


def _load(path: Path) -> Settings | None:
    try:
        return load(path, environ={}, flags={})
    except ConfigErrors as fault:
        problems = fault.problems
    assert problems
    assert all(problem.message for problem in problems)
    return None


@_fixture
@given(data=st.binary(max_size=200))
@example(data=b"version: 1\npolicies: {a: {allow: [{host: a.example}]}}")
@example(data=b"\xef\xbb\xbf&a [*a]")
@example(data=b"? [{}]\n: x")
@example(data=b"version: 1\npolicies: &p {a: *p}")
@example(data=b"a: " + b"[" * 64)
def test_any_bytes(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(data)
    _load(path)


@_fixture
@given(tree=_TREES)
def test_any_tree(tmp_path: Path, tree: object) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(
        f"version: 1\npolicies: {{p: {{allow: [{_flow(tree)}], deny: [{_flow(tree)}]}}}}\n", encoding="utf-8"
    )
    loaded = _load(path)
    if loaded is not None:
        spec = loaded.policies["p"]
        assert len(spec.allow) == 1
        compile_policy(spec)


@_fixture
@given(tree=_TREES, form=st.sampled_from([FileForm, PolicyForm, LockForm]))
def test_reading_is_total(tree: object, form: type[FileForm | PolicyForm | LockForm]) -> None:
    try:
        root = compose(_flow(tree).encode(), "f")
    except ConfigErrors:
        return
    if root is not None:
        reading = Reading("f")
        value = reader(form)(root, reading, None)
        assert isinstance(value, form) or reading.problems


@pytest.mark.parametrize("key", ["line_", "key_"])
def test_no_file_can_say_where_it_stands(tmp_path: Path, key: str) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(f"version: 1\npolicies: {{p: {{allow: [{{host: a.example, {key}: 7}}]}}}}\n")
    assert _load(path) is None
