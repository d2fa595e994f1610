"""Sessions of tool calls: what one may have, given the session that it is made in.

| a call's session has | of its parent's |
|---|---|
| policy, owner | the same |
| credentials | some or all, each with a placeholder of its own |
| time | what is left of it, or less |
| place | the same, or doors of its own (a launcher's) |
| budgets | the same: what one uses up, the other no longer has |
| end, freeze | its own, and its parent's |
"""

from typing import Final

import msgspec

from tidegate.audit.event import CallScope
from tidegate.audit.redact import loggable
from tidegate.errors import KeeperError
from tidegate.keeper.protocol import SessionNew
from tidegate.keeper.sessions import Record
from tidegate.session.call import ToolCall

__all__ = ["MOST_DEEP", "as_child", "scope_of"]

MOST_DEEP: Final = 8
"""How far calls may be made within calls."""


def scope_of(call: ToolCall | None) -> CallScope | None:
    """Return a call as it is kept and put on record: its words escaped."""
    return None if call is None else CallScope(loggable(call.tool), loggable(call.id), call.parent)


def as_child(ask: SessionNew, line: tuple[Record, ...], left: float | None) -> SessionNew:
    """Return what is asked as a child's: `line` is its parent and that one's own, `left` the parent's seconds.

    Raises `KeeperError` for what is wider than the parent.
    """
    parent = line[0]
    if parent.frozen:
        raise KeeperError(f"session {parent.id} is frozen", hint="tidegate session thaw ID")
    if len(line) >= MOST_DEEP:
        raise KeeperError(f"calls are made within calls at most {MOST_DEEP} deep")
    if ask.policy not in (None, parent.policy):
        raise KeeperError(f"a call has its session's own policy, {parent.policy!r}", where="policy")
    wider = [name for name in ask.credentials if name not in parent.credentials]
    if wider:
        told = ", ".join(map(repr, wider))
        raise KeeperError(f"session {parent.id} does not hold {told}: a call has no more than it", where="credentials")
    if ask.source is not None:
        raise KeeperError("a call is where its session is: it has no network of its own", where="source")
    given = [seconds for seconds in (ask.ttl_seconds, left) if seconds is not None]
    ttl = min(given) if given else None
    return msgspec.structs.replace(ask, policy=parent.policy, owner=parent.owner, ttl_seconds=ttl)
