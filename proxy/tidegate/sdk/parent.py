"""A harness's session without a sandbox of its own, and what the calls made in it may ask for."""

from collections.abc import Sequence
from pathlib import Path

from tidegate.errors import LaunchError
from tidegate.sdk.place import state_folder
from tidegate.sdk.redact import redact
from tidegate.session.call import ToolCall
from tidegate_launcher.lease import Ask, Lease

__all__ = ["ParentSession"]


class ParentSession:
    """Such a session: open from `open` to `close`, and then over, with those of all calls made in it."""

    def __init__(
        self,
        policy: str,
        *,
        credentials: Sequence[str],
        owner: str,
        ttl_seconds: float | None,
        state: str | Path | None,
    ) -> None:
        self._ask = Ask(policy=policy, credentials=tuple(credentials), owner=owner, ttl_seconds=ttl_seconds)
        self._state = state_folder(state)
        self._lease: Lease | None = None

    def open(self) -> None:
        """Open it at the gate. Raises `LaunchError`."""
        self._lease = Lease.open(self._state, self._ask)

    def close(self) -> None:
        """Give it back, if it is open."""
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.close()

    @property
    def id(self) -> str:
        """Its id in the log. Raises `LaunchError` when it is not open."""
        return str(self._now().id)

    def child(self, tool: str, id: str, credentials: Sequence[str] | None) -> Ask:
        """Return what a call asks of the gate: None, all credentials of the session. Raises `LaunchError`."""
        held = self._ask.credentials
        wanted = held if credentials is None else tuple(credentials)
        if wider := [name for name in wanted if name not in held]:
            told = ", ".join(map(repr, wider))
            raise LaunchError(f"the session does not hold {told}", where="credentials", hint="give them to the session")
        call = ToolCall.of(tool, id, parent=self._now().id)
        return Ask(policy=self._ask.policy, credentials=wanted, owner=self._ask.owner, call=call)

    def redact(self, text: str) -> str:
        """Return a text of the session or of a call in it without what opens anything; see `tidegate.sdk.redact`."""
        return redact(text, environment=self._now().environment)

    def _now(self) -> Lease:
        if self._lease is None:
            raise LaunchError("the session is not open", hint="with Session(policy=…) as session: …")
        return self._lease
