"""A sandbox at a gate: one session, and the requests that it makes."""

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.lab.client import RawClient, RawReply, Refused, connect, proxy_header, tunnel
from tests.lab.gate import Gate, Session
from tests.lab.upstream import Upstream

__all__ = ["Visitor", "bearer", "place"]


def place(**where: Any) -> dict[str, Any]:
    """Return a credential's `place`: the header Authorization with Bearer unless `where` says another."""
    return dict(where) or {"header": "Authorization", "format": "Bearer {secret}"}


def bearer(placeholder: str) -> tuple[str, str]:
    """Return the header field of a bearer token."""
    return "Authorization", f"Bearer {placeholder}"


@dataclasses.dataclass(frozen=True)
class Visitor:
    """One session of a gate; `get` makes one request on a connection of its own."""

    gate: Gate
    session: Session

    @property
    def ca(self) -> Path:
        """The gate's certificate."""
        return self.gate.state / "ca.pem"

    def authority(self, server: Upstream, host: str | None = None) -> str:
        """Return `host:port` of a server (its first name unless `host` is given)."""
        return f"{host or server.names[0]}:{server.port}"

    def tunnel(
        self, server: Upstream, host: str | None = None, **more: Any
    ) -> contextlib.AbstractContextManager[RawClient]:
        """CONNECT to a server; see `client.tunnel`."""
        more = {"token": self.session.token, "ca": self.ca, **more}
        return tunnel(self.gate, host or server.names[0], server.port, **more)

    def get(
        self,
        server: Upstream,
        target: str = "/echo",
        *,
        host: str | None = None,
        method: str = "GET",
        headers: Sequence[tuple[str, str]] = (),
        body: bytes | None = None,
        **more: Any,
    ) -> RawReply:
        """Make one https request; a refusal at CONNECT is returned like any reply."""
        try:
            with self.tunnel(server, host, **more) as raw:
                return raw.request(method, target, host=self.authority(server, host), headers=headers, body=body)
        except Refused as refused:
            if refused.reply is None:
                raise
            return refused.reply

    def plain(
        self,
        url: str,
        *,
        host: str,
        method: str = "GET",
        headers: Sequence[tuple[str, str]] = (),
        body: bytes | None = None,
    ) -> RawReply:
        """Make one plain request in absolute form."""
        with connect(self.gate) as raw:
            shown = proxy_header(self.session.token).decode().strip().split(": ", 1)
            return raw.request(method, url, host=host, headers=[(shown[0], shown[1]), *headers], body=body)

    def connect_to(self, authority: str) -> RawReply:
        """Send a CONNECT and return its answer."""
        with connect(self.gate) as raw:
            raw.send(f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n".encode("latin-1"))
            raw.send(proxy_header(self.session.token) + b"\r\n")
            return raw.reply(method="CONNECT")

    def log(self, **wanted: Any) -> list[dict[str, Any]]:
        """Return the session's lines of the log."""
        return self.gate.audit(session=self.session.id, **wanted)

    def wait_log(self, condition: Callable[[list[dict[str, Any]]], bool] = bool, **wanted: Any) -> list[dict[str, Any]]:
        """Wait for lines of the session; see `Gate.wait_audit`."""
        return self.gate.wait_audit(condition, session=self.session.id, **wanted)

    def reasons(self, kind: str = "http", phase: str = "decision") -> list[str | None]:
        """Return the reasons of the session's records of one type and phase."""
        return [line["reason"] for line in self.log(type=kind, phase=phase)]
