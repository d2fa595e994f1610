"""What another's rules do with packets that come in, and no rule of ours can take back. Pure.

Each was tried against a wall that stands:

| a rule of another's, before ours or after | leads the sandbox's packets |
|---|---|
| accept, mark, notrack; DNAT and redirect | nowhere else: `closed` drops what is not for a listener of the gate |
| `tproxy` (TPROXY) | to a listener that lies elsewhere, whatever ours say |
| `dup` (TEE) | to another machine, as a copy |
| another destination written into the packet | to another listener of this machine, after ours let it in |

A rule that is for another device by its own words is none of ours. Those by which a chain is reached are not looked at,
nor is a mark: rather a table too many is told.
"""

import fnmatch
from collections.abc import Iterable, Iterator
from typing import Any, Final

__all__ = ["led_away"]

_STATEMENTS: Final = ("tproxy", "dup")
_TARGETS: Final = ("TPROXY", "TEE")
"""The same of iptables."""
_ENDS: Final = ("daddr", "dport")


def led_away(rules: Iterable[dict[str, Any]], device: str) -> list[str]:
    """Return by which words the rules lead away what comes in by the device."""
    return sorted({word for rule in rules for word in _words(rule.get("expr", []), device)})


def _words(expressions: list[Any], device: str) -> Iterator[str]:
    for one in expressions:
        kind, body = _word(one)
        if kind == "match" and not _may_hold(body, device):
            return
        if kind in _STATEMENTS:
            yield kind
        elif kind == "xt" and isinstance(body, dict) and body.get("name") in _TARGETS:
            yield str(body["name"])
        elif kind == "mangle" and _is_destination(body["key"]):
            yield "another destination"


def _word(expression: Any) -> tuple[str, Any]:
    return next(iter(expression.items())) if isinstance(expression, dict) else ("", None)


def _may_hold(match: dict[str, Any], device: str) -> bool:
    """Tell whether a packet that came in by the device can be one of these."""
    left, right = match["left"], match["right"]
    if not isinstance(left, dict) or left.get("meta", {}).get("key") not in ("iif", "iifname"):
        return True
    several = right.get("set") if isinstance(right, dict) else [right]
    if not isinstance(several, list) or not all(isinstance(one, str) and one[:1] != "@" for one in several):
        return True
    named = any(fnmatch.fnmatchcase(device, one) for one in several)
    return named is (match["op"] != "!=")


def _is_destination(key: Any) -> bool:
    field = key.get("payload", {}) if isinstance(key, dict) else {}
    return "base" in field or field.get("field") in _ENDS
