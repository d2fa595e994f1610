"""What is looked at each second: deadlines, a keeper that is gone, connections that a new policy would refuse."""

import time
from collections.abc import Set as AbstractSet

from tidegate.exchange.channel import Channel
from tidegate.exchange.ending import End
from tidegate.exchange.exchange import Exchange
from tidegate.exchange.gate import Gate
from tidegate.policy.decide import Ask, decide
from tidegate.policy.reasons import Reason
from tidegate.runtime.handler import ConnectionHandler

__all__ = ["Watch"]

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
            if handler.channel.session is not None and handler.channel.session.frozen:
                continue  # nothing of it is read: what stands still, stands still by our will
            if self._is_overdue(handler, handler.channel, now):
                handler.time_out(Reason.CLIENT_TIMEOUT)
                continue
            self._expire(handler, now)

    def _is_overdue(self, handler: ConnectionHandler, channel: Channel, now: float) -> bool:
        """Tell whether the connection as a whole has passed a deadline of its client's."""
        limits = self._gate.settings.limits
        if handler.head_overdue(now, seconds=limits.header_timeout_seconds):
            return True
        if handler.blocked_for(now) > limits.stall_timeout_seconds / 2:
            return True
        if channel.exchanges:
            return False
        if channel.session is None and now - channel.began > limits.header_timeout_seconds:
            return True
        return now - handler.active_at > limits.idle_timeout_seconds

    def _expire(self, handler: ConnectionHandler, now: float) -> None:
        limits = self._gate.settings.limits
        stall = limits.stall_timeout_seconds
        for exchange in list(handler.channel.exchanges):
            reason = exchange.overdue(
                now,
                stall=stall,
                slow=stall / 2,
                rate=_SLOW_BYTES_PER_SECOND,
                idle=limits.idle_timeout_seconds,
                life=limits.exchange_seconds,
            )
            if reason is not None:
                handler.expire(exchange, reason)

    def make_room(self, count: int) -> None:
        """End the connections that have been idle the longest, so that others get in."""
        idle = [
            handler
            for handler in self._handlers
            if hasattr(handler, "channel") and not handler.channel.exchanges and not handler.channel.opaque
        ]
        for handler in sorted(idle, key=lambda handler: handler.active_at)[:count]:
            handler.time_out(Reason.BUDGET)

    def rejudge(self) -> None:
        """End every tunnel and exchange that the policy of now would not begin."""
        now = self._gate.clock.wall()
        for handler in list(self._handlers):
            if not hasattr(handler, "channel"):
                continue
            stays = handler.channel.upstreams.revet(handler.channel.session)
            whole, some = _refusals(handler.channel, now)
            for exchange, reason in some:
                exchange.break_off(End.RELOADED, reason)
            if not stays or whole is not None or some:
                handler.cut(whole or (None if stays else Reason.RESOLVED_BLOCKED), End.RELOADED)

    def drain(self) -> None:
        """Let no connection begin another request; idle ones end now."""
        for handler in list(self._handlers):
            if not hasattr(handler, "channel"):
                continue
            handler.channel.closing = True
            if not handler.channel.exchanges and not handler.channel.opaque:
                handler.cut(None, End.DRAINED)


def _refusals(channel: Channel, now: float) -> tuple[Reason | None, list[tuple[Exchange, Reason]]]:
    """Return for what the policy of now would refuse the connection, and which of its requests for what."""
    session = channel.session
    if session is None:
        return None, []
    asked = [(exchange, exchange.refused_by(session.policy, now)) for exchange in channel.exchanges]
    some = [(exchange, reason) for exchange, reason in asked if reason is not None]
    rule, host = channel.rule, channel.host
    if rule is None or host is None:
        return None, some
    protocol = "https" if rule.protocol == "any" else rule.protocol
    decision = decide(Ask(host, channel.port, protocol), session.policy, now)
    return None if decision.allowed else decision.reason, some
