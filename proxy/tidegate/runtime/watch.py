"""What is looked at each second: deadlines, a keeper that is gone, connections that a new policy would refuse."""

import time
from collections.abc import Set as AbstractSet

from tidegate.exchange.channel import Channel
from tidegate.exchange.gate import Gate
from tidegate.policy.decide import Ask, decide
from tidegate.policy.reasons import Reason
from tidegate.runtime.handler import ConnectionHandler

__all__ = ["Watch"]

_IDLE_SECONDS = 600.0
_FIRST_BYTE_SECONDS = 60.0
_STALL_SECONDS = 120.0
_BLOCKED_SECONDS = 60.0
_SLOW_SECONDS = 60.0
_SLOW_BYTES_PER_SECOND = 64


class Watch:
    """Looks at every connection of a worker; a turn costs a few comparisons each."""

    def __init__(self, gate: Gate, handlers: AbstractSet[ConnectionHandler]) -> None:
        self._gate = gate
        self._handlers = handlers

    def tick(self) -> None:
        """Cut what is over a deadline."""
        now = time.monotonic()
        gone = self._gate.keeper_gone()
        for handler in list(self._handlers):
            if not hasattr(handler, "channel"):
                continue
            if gone:
                handler.cut(Reason.KEEPER_UNAVAILABLE)
                continue
            reason = self._overdue(handler, handler.channel, now)
            if reason is not None:
                handler.time_out(reason)

    def _overdue(self, handler: ConnectionHandler, channel: Channel, now: float) -> Reason | None:
        limit = self._gate.settings.limits.header_timeout_seconds
        if channel.head_since is not None and now - channel.head_since > limit:
            return Reason.CLIENT_TIMEOUT
        if handler.blocked_for(now) > _BLOCKED_SECONDS:
            return Reason.CLIENT_TIMEOUT
        for exchange in channel.exchanges:
            reason = exchange.overdue(now, stall=_STALL_SECONDS, slow=_SLOW_SECONDS, rate=_SLOW_BYTES_PER_SECOND)
            if reason is not None:
                return reason
        if not channel.exchanges and now - handler.active_at > _IDLE_SECONDS:
            return Reason.CLIENT_TIMEOUT
        return None

    def rejudge(self) -> None:
        """End every tunnel and exchange that the policy of now would not begin."""
        now = self._gate.clock.wall()
        for handler in list(self._handlers):
            if hasattr(handler, "channel") and _refused(handler.channel, now):
                handler.cut(Reason.NOT_IN_ALLOWLIST)

    def drain(self) -> None:
        """Let no connection begin another request; idle ones end now."""
        for handler in list(self._handlers):
            if not hasattr(handler, "channel"):
                continue
            handler.channel.closing = True
            if not handler.channel.exchanges and not handler.channel.opaque:
                handler.cut(Reason.SESSION_INVALID)


def _refused(channel: Channel, now: float) -> bool:
    session = channel.session
    if session is None:
        return False
    if any(exchange.refused_by(session.policy, now) for exchange in channel.exchanges):
        return True
    rule, host = channel.rule, channel.host
    if rule is None or host is None:
        return False
    protocol = "https" if rule.protocol == "any" else rule.protocol
    return not decide(Ask(host, channel.port, protocol), session.policy, now).allowed
