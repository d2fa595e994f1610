"""The places of a request where a credential may stand, and what stands there."""

import base64
import binascii
import re
from collections.abc import Iterator
from urllib.parse import unquote_to_bytes

import msgspec

from tidegate.credentials.request import Fields, Holding, RequestView, one_name
from tidegate.credentials.spec import SLOT

__all__ = ["Slot", "decode_basic", "names_a_parameter", "slots", "with_value"]

_SCHEME = re.compile(rb"[ \t]*([!#$%&'*+.^_`|~0-9A-Za-z-]+)[ \t]+(\S+)[ \t]*")
_SAME_AS_BEARER = (b"bearer", b"token")


class Slot(msgspec.Struct, frozen=True):
    """A place at a host that credentials name: who shares it, where it is, what stands there and whose that is.

    `plain` is False where the name of the header or query parameter is spelled in a way of its own.
    """

    sharing: tuple[Holding, ...]
    at: tuple[int, ...]
    value: bytes
    owner: Holding | None
    plain: bool = True


def slots(view: RequestView, kept: Fields, bound: list[Holding]) -> Iterator[Slot]:
    """Yield each place that is not empty; holdings with different paths may share one."""
    places: dict[tuple[bytes, str], list[Holding]] = {}
    for holding in bound:
        place = holding.spec.place
        places.setdefault((one_name(place.field), place.parameter if place.kind == "query" else ""), []).append(holding)
    for (field, parameter), sharing in places.items():
        plain = True
        if field:
            size = len(field)
            at = tuple(i for i, (name, _) in enumerate(kept) if len(name) == size and one_name(name) == field)
            value = kept[at[0]][1] if at else b""
            plain = not at or kept[at[0]][0].lower() == sharing[0].spec.place.field
        else:
            at, value, plain = _find_parameter(view.target, parameter.encode())
        if at and (value.strip() or len(at) > 1):
            owner = next((holding for holding in sharing if _is_own(holding, value)), None)
            yield Slot(tuple(sharing), at, value, owner if plain else None, plain)


def _find_parameter(target: bytes, name: bytes) -> tuple[tuple[int, ...], bytes, bool]:
    """Return where the parameter stands in the query, however it is spelled; its value; whether it is spelled plainly.

    Servers differ on `;`, on letter case and on `_` for `-`; whatever one of them could take for the parameter counts.
    """
    at: list[int] = []
    value, plain = b"", True
    if one_name(name) not in one_name(unquote_to_bytes(target.replace(b"+", b" "))):
        return (), value, plain
    for index, part in enumerate(_query_parts(target)):
        for piece in part.split(b";"):
            key, _, text = piece.partition(b"=")
            if one_name(unquote_to_bytes(key.replace(b"+", b" ")).strip()) == one_name(name):
                at.append(index)
                value, plain = text, part == name + b"=" + text
    return tuple(at), value, plain


def _query_parts(target: bytes) -> list[bytes]:
    return target.partition(b"?")[2].split(b"&")


def _is_own(holding: Holding, value: bytes) -> bool:
    """Tell whether the value of the place is the holding's placeholder and nothing else."""
    place, placeholder = holding.spec.place, holding.placeholder.encode()
    match place.kind:
        case "query":
            return value == placeholder
        case "basic":
            pair = decode_basic(value)
            return pair is not None and pair[0 if place.user == SLOT else 1] == placeholder
        case "header":
            return _is_own_header(place.format.encode(), placeholder, value)


def _is_own_header(form: bytes, placeholder: bytes, value: bytes) -> bool:
    if value.strip(b" \t") == form.replace(SLOT.encode(), placeholder):
        return True
    # A scheme is case-insensitive (RFC 9110 section 11.1), and `token` is what some clients say for Bearer.
    wanted, given = _SCHEME.fullmatch(form), _SCHEME.fullmatch(value)
    if not wanted or not given or wanted[2] != SLOT.encode() or given[2] != placeholder:
        return False
    ours, theirs = wanted[1].lower(), given[1].lower()
    return ours == theirs or (ours in _SAME_AS_BEARER and theirs in _SAME_AS_BEARER)


def decode_basic(value: bytes) -> tuple[bytes, bytes] | None:
    """Return user and password of a well-formed Basic value (RFC 7617), else None."""
    scheme, _, text = value.strip(b" \t").partition(b" ")
    if scheme.lower() != b"basic":
        return None
    try:
        user, colon, password = base64.b64decode(text.strip(b" \t"), validate=True).partition(b":")
    except binascii.Error:
        return None
    return (user, password) if colon else None


def names_a_parameter(target: bytes, names: frozenset[bytes]) -> bool:
    """Tell whether the query has a parameter of these names, by any separator that a server may use.

    `names` are in the spelling of `one_name`. Almost no query holds any of them anywhere, and is not taken apart.
    """
    query = target.partition(b"?")[2]
    if not query:
        return False
    whole = one_name(unquote_to_bytes(query))
    if not any(name in whole for name in names):
        return False
    keys = (part.partition(b"=")[0].replace(b"+", b" ") for part in re.split(rb"[&;]", query))
    return any(one_name(unquote_to_bytes(key)).strip() in names for key in keys)


def with_value(target: bytes, at: int, value: bytes) -> bytes:
    """Return the target with another value in one `&`-part of its query."""
    path, _, query = target.partition(b"?")
    parts = query.split(b"&")
    parts[at] = parts[at].partition(b"=")[0] + b"=" + value
    return path + b"?" + b"&".join(parts)
