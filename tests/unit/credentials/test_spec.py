"""Places that can hold a secret, and how strong a secret must be."""

import pytest

from tidegate.credentials.spec import CredentialSpec, Place, Scope
from tidegate.credentials.strength import MIN_BITS, strength_bits
from tidegate.policy.names import HostName
from tidegate.policy.paths import Path, parse_glob, parse_target
from tidegate.secret import Secret

HOST = HostName("api.allowed.test")


@pytest.mark.parametrize(
    "place",
    [
        Place("header", format="Bearer {secret}"),
        Place("header", header="X-Api-Key"),
        Place("basic", user="x-access-token"),
        Place("basic", user="{secret}", password="x"),
        Place("query", parameter="key"),
    ],
    ids=lambda place: place.kind,
)
def test_usable_place(place: Place) -> None:
    assert place.problems() == []


@pytest.mark.parametrize(
    ("place", "word"),
    [
        (Place("header", header="Bad Header"), "header name"),
        (Place("header", header="Host"), "connection"),
        (Place("header", header="Content-Length"), "connection"),
        (Place("header", format="Bearer"), "exactly once"),
        (Place("header", format="{secret}{secret}"), "exactly once"),
        (Place("header", format="a\r\nb {secret}"), "printable"),
        (Place("basic", user="{secret}"), "exactly one"),
        (Place("basic", password="fixed"), "exactly one"),
        (Place("basic", user="a:b"), "colon"),
        (Place("query"), "parameter"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_unusable_place(place: Place, word: str) -> None:
    assert any(word in problem for problem in place.problems())


@pytest.mark.parametrize(
    ("host", "method", "target", "want"),
    [
        (HOST, "GET", "/repos/acme/x", True),
        (HOST, "POST", "/repos/acme/x", False),
        (HOST, "GET", "/orgs", False),
        (HOST, "GET", "/repos/acme/..%2fx", False),
        ("evil.api.allowed.test", "GET", "/repos/acme/x", False),
    ],
)
def test_C_41_scope_is_exact(host: str, method: str, target: str, want: bool) -> None:
    spec = CredentialSpec("c", (Scope(HOST, ("GET",), (parse_glob("/repos/acme/**"),)),), Place("header"))
    path = parse_target(target)
    assert isinstance(path, Path)
    assert spec.covers(HostName(host), method, path) is want


@pytest.mark.parametrize(
    ("secret", "strong"),
    [
        ("ghp_R3alS3cretR3alS3cretR3alS3cret0123", True),
        ("0123456789abcdef0123", True),
        ("0123456789abcdef012", False),
        ("hunter2", False),
        ("a" * 100, False),
        ("ab" * 30, False),
        ("12345678901234567890", False),
        ("1234567890123456789012345", True),
        ("", False),
    ],
)
def test_C_37_strength(secret: str, strong: bool) -> None:
    assert (strength_bits(Secret(secret)) >= MIN_BITS) is strong
