"""Placeholders look like the real thing and are known for ours."""

import base64
import json
import re
import zlib

import pytest

from tidegate.credentials.placeholder import SHAPES, find_placeholders, new_placeholder
from tidegate.errors import ConfigError

LOOKS = {
    "generic": r"tg_\w{30}",
    "hex": r"[0-9a-f]{40}",
    "github": r"ghp_[0-9A-Za-z]{36}",
    "github_app": r"ghs_[0-9A-Za-z]{36}",
    "github_pat": r"github_pat_[0-9A-Za-z]{22}_[0-9A-Za-z]{59}",
    "npm": r"npm_[0-9A-Za-z]{36}",
    "gitlab": r"glpat-[0-9A-Za-z]{30}",
    "openai": r"sk-proj-[0-9A-Za-z]{48}",
    "anthropic": r"sk-ant-api03-[0-9A-Za-z]{93}AA",
    "slack": r"xoxb-[0-9A-Za-z]{30}",
    "pypi": r"pypi-[0-9A-Za-z]{60}",
    "huggingface": r"hf_[0-9A-Za-z]{34}",
    "google_api": r"AIza[0-9A-Za-z]{35}",
    "jwt": r"[\w-]+\.[\w-]+\.[\w-]{43}",
    "prefix:acme_": r"acme_[0-9A-Za-z]{30}",
}


def test_every_shape_is_described_here() -> None:
    assert {name for name in LOOKS if ":" not in name} == set(SHAPES)


@pytest.mark.parametrize("shape", LOOKS)
def test_looks_like_the_real_thing(shape: str) -> None:
    assert re.fullmatch(LOOKS[shape], new_placeholder(shape))


@pytest.mark.parametrize("shape", LOOKS)
def test_C_31_is_recognised_whoever_made_it(shape: str) -> None:
    text = b"x=" + new_placeholder(shape).encode() + b"; y"
    assert len(find_placeholders(text)) == 1
    assert len(find_placeholders(text.upper())) == 1


@pytest.mark.parametrize("shape", LOOKS)
def test_C_40_has_128_random_bits(shape: str) -> None:
    """Two placeholders from opposite random bytes differ in every random letter: count them."""
    low, high = (new_placeholder(shape, random=lambda count, b=byte: bytes([b]) * count) for byte in (0, 1))
    body = len(low) - (6 if shape in ("github", "github_app", "npm") else 0)  # the checksum is not random
    differing = sum(a != b for a, b in zip(low[:body], high[:body], strict=True))
    assert differing * (4 if shape == "hex" else 5.95) >= 128


@pytest.mark.parametrize("shape", LOOKS)
def test_needs_no_escaping_anywhere(shape: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_.-]+", new_placeholder(shape))


@pytest.mark.parametrize("shape", ["github", "github_app", "npm"])
def test_checksum_is_the_one_that_clients_check(shape: str) -> None:
    body = new_placeholder(shape)[4:]
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    value = 0
    for digit in body[30:]:
        value = value * 62 + digits.index(digit)
    assert value == zlib.crc32(body[:30].encode())


def test_jwt_decodes_and_does_not_expire() -> None:
    header, payload, signature = (part + "=" * (-len(part) % 4) for part in new_placeholder("jwt").split("."))
    assert json.loads(base64.urlsafe_b64decode(header))["alg"] == "HS256"
    assert json.loads(base64.urlsafe_b64decode(payload))["exp"] > 4e9
    assert len(base64.urlsafe_b64decode(signature)) == 32


@pytest.mark.parametrize("shape", ["", "nosuch", "prefix:", "prefix:a b", "prefix:" + "x" * 33, "prefix:a\n"])
def test_unknown_shape_is_an_error_that_names_the_known(shape: str) -> None:
    with pytest.raises(ConfigError, match="generic"):
        new_placeholder(shape)


@pytest.mark.parametrize(
    "text", [b"", b"71de9a7e", b"71de9a7e" + b"x" * 21, b"a" * 5000, bytes(range(256)) * 10], ids=repr
)
def test_ordinary_text_is_none(text: bytes) -> None:
    assert find_placeholders(text) == []
