"""How a connection or a request is broken off, in the log's words; what no word here says ends as its reason's code."""

import enum

__all__ = ["End"]


class End(enum.StrEnum):
    """The words of `end` that are no reason's code."""

    CLOSED = "closed"
    """Nothing was under way."""
    CLIENT_LEFT = "client_left"
    """The client went away in the middle."""
    DRAINED = "drained"
    """It stood idle when the gate began to stop."""
    STOPPED = "stopped"
    """It was still under way when the gate had no more time to stop in."""
    RELOADED = "reloaded"
    """The configuration of now would not begin it, or changed its session."""
    REVOKED = "revoked"
    """Its session was revoked, or is a call's and ended with the session that the call was made in."""
    EXPIRED = "expired"
    """Its session's time was over."""

    @classmethod
    def of_push(cls, why: str) -> "End | None":
        """Return the word for the keeper's word of a session's end, if there is one."""
        return _PUSHED.get(why)


_PUSHED = {
    "revoked": End.REVOKED,
    "expired": End.EXPIRED,
    "changed": End.RELOADED,
    "policy_removed": End.RELOADED,
    "parent_ended": End.REVOKED,
    "parent_changed": End.RELOADED,
}
