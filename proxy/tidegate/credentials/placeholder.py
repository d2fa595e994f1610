"""Placeholders: random, shaped like the real thing, and recognisable as ours whoever made them.

Each one holds the marker `71de9a7e` followed by at least 22 random letters and digits. The marker is
hexadecimal, so that it fits every alphabet; by it a placeholder of another session, or of one long
gone, is known for what it is (C-31). In ordinary hexadecimal text it turns up by chance once in 2**32
positions.

| shape | looks like | checked by clients |
|---|---|---|
| generic | `tg_` + 30 | |
| hex | 40 hexadecimal digits | length, alphabet |
| github, github_app, npm | `ghp_`, `ghs_`, `npm_` + 36 | CRC-32 in the last six |
| github_pat | `github_pat_` + 22 + `_` + 59 | length |
| gitlab, openai, anthropic, slack, pypi, huggingface, google_api | vendor's prefix | prefix, some length |
| jwt | three base64url parts, alg HS256, far `exp` | decodes, not expired |
| `prefix:TEXT` | TEXT + 30 | |
"""

import base64
import re
import secrets
import zlib
from collections.abc import Callable

from tidegate.errors import ConfigError
from tidegate.traces import CORE_PATTERN, MARKER

__all__ = [
    "MARKER",
    "SHAPES",
    "check_shape",
    "find_placeholders",
    "new_placeholder",
]

_BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_HEX = "0123456789abcdef"
_CORE = re.compile(CORE_PATTERN.encode(), re.IGNORECASE)
_PREFIX = re.compile(r"[A-Za-z0-9_.-]{1,32}")

type _Random = Callable[[int], bytes]


def _letters(count: int, random: _Random, alphabet: str = _BASE62) -> str:
    """Return unbiased random letters: bytes past the last whole multiple of the alphabet are thrown away."""
    out: list[str] = []
    limit = 256 - 256 % len(alphabet)
    while len(out) < count:
        out += [alphabet[byte % len(alphabet)] for byte in random(count * 2) if byte < limit]
    return "".join(out[:count])


def _core(length: int, random: _Random, alphabet: str = _BASE62) -> str:
    return MARKER + _letters(length - len(MARKER), random, alphabet)


def _prefixed(prefix: str, length: int = 30, suffix: str = "") -> Callable[[_Random], str]:
    return lambda random: prefix + _core(length, random) + suffix


def _checksummed(prefix: str) -> Callable[[_Random], str]:
    """GitHub's token form, which npm shares: 30 letters, then their CRC-32 in six base62 digits."""

    def make(random: _Random) -> str:
        body = _core(30, random)
        value, digits = zlib.crc32(body.encode()), ""
        for _ in range(6):
            value, digit = divmod(value, 62)
            digits = _BASE62[digit] + digits
        return prefix + body + digits

    return make


def _github_pat(random: _Random) -> str:
    return f"github_pat_{_letters(22, random)}_{_core(59, random)}"


def _jwt(random: _Random) -> str:
    parts = (b'{"alg":"HS256","typ":"JWT"}', b'{"iss":"tidegate","exp":4102444800}')
    texts = [base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts]
    # 43 base64url characters are 32 bytes and two bits that must be zero: the last one is fixed.
    return ".".join([*texts, _core(42, random) + "A"])


SHAPES: dict[str, Callable[[_Random], str]] = {
    "generic": _prefixed("tg_"),
    "hex": lambda random: _core(40, random, _HEX),
    "github": _checksummed("ghp_"),
    "github_app": _checksummed("ghs_"),
    "github_pat": _github_pat,
    "npm": _checksummed("npm_"),
    "gitlab": _prefixed("glpat-"),
    "openai": _prefixed("sk-proj-", 48),
    "anthropic": _prefixed("sk-ant-api03-", 93, "AA"),
    "slack": _prefixed("xoxb-"),
    "pypi": _prefixed("pypi-", 60),
    "huggingface": _prefixed("hf_", 34),
    "google_api": _prefixed("AIza", 35),
    "jwt": _jwt,
}


def check_shape(shape: str) -> None:
    """Raise ConfigError unless the shape is known or is `prefix:` with a safe text."""
    if shape in SHAPES:
        return
    kind, _, prefix = shape.partition(":")
    if kind != "prefix" or not _PREFIX.fullmatch(prefix):
        known = ", ".join([*sorted(SHAPES), "prefix:TEXT"])
        raise ConfigError(f"unknown placeholder shape {shape!r}", hint=f"one of {known}")


def new_placeholder(shape: str, *, random: _Random = secrets.token_bytes) -> str:
    """Make a placeholder of the shape, with at least 128 random bits (C-40)."""
    check_shape(shape)
    make = SHAPES.get(shape) or _prefixed(shape.partition(":")[2])
    return make(random)


def find_placeholders(text: bytes) -> list[bytes]:
    """Return what follows each marker in the text, marker included, in any letter case and as it stands."""
    return _CORE.findall(text)
