"""A real worker that raises where the host's first label says: `PLACE--KIND.broken.test`.

Each hook, each call of an exchange and each wait of a channel is wrapped before the worker serves; for every other
host it does what it always does.
"""

import asyncio
import functools
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mitmproxy.exceptions import AddonHalt

from tidegate.exchange.channel import Channel
from tidegate.exchange.exchange import Exchange
from tidegate.runtime import worker
from tidegate.runtime.listener import Bound
from tidegate_addons.admission import Admission
from tidegate_addons.record import Record
from tidegate_addons.scrub import Scrub
from tidegate_addons.verdict import Verdict

__all__ = ["main"]


class Abrupt(BaseException):
    """Not an `Exception`: what only a bare `except` would catch."""


KINDS: dict[str, Callable[[], BaseException]] = {
    "runtime": lambda: RuntimeError("on demand"),
    "key": lambda: KeyError("on demand"),
    "memory": lambda: MemoryError(),
    "recursion": lambda: RecursionError(),
    "timeout": lambda: TimeoutError(),
    "halt": lambda: AddonHalt(),
    "stop": lambda: StopIteration(),
    "cancelled": lambda: asyncio.CancelledError(),
    "exit": lambda: GeneratorExit(),
    "abrupt": lambda: Abrupt(),
}


def _channel(argument: Any) -> Channel | None:
    """Find the channel behind a flow, a hello, TLS data, a pending layer, an exchange or a channel."""
    if isinstance(argument, Channel):
        return argument
    if isinstance(argument, Exchange):
        return argument.channel
    exchange = getattr(argument, "metadata", {}).get("tidegate.exchange")
    return exchange.channel if isinstance(exchange, Exchange) else None


def _host(owner: Any, arguments: tuple[Any, ...]) -> str:
    for argument in (owner, *arguments):
        channel = _channel(argument)
        if channel is not None and channel.host is not None:
            return str(channel.host)
    for argument in arguments:
        target = getattr(argument, "target", None)  # the head of a CONNECT
        if isinstance(target, bytes):
            return target.decode("latin-1")
        head = getattr(argument, "metadata", {}).get("tidegate.head")
        if head is not None:
            return str(head.target.decode("latin-1"))
        context = getattr(argument, "context", None)
        channels = getattr(owner, "_channels", getattr(owner, "channels", None))
        if context is not None and channels is not None:
            return str(channels.of(context.client).host)
    return ""


def _check(place: str, owner: Any, arguments: tuple[Any, ...]) -> None:
    wanted, _, kind = _host(owner, arguments).partition(".")[0].partition("--")
    if wanted == place.replace("_", "-") and kind in KINDS:
        raise KINDS[kind]()


def _wrap(owner: type, name: str, *, place: str | None = None) -> None:
    real = getattr(owner, name)
    told = place or name

    @functools.wraps(real)
    def at_once(self: Any, *arguments: Any, **more: Any) -> Any:
        _check(told, self, arguments)
        return real(self, *arguments, **more)

    setattr(owner, name, at_once)


def _wrap_later(owner: type, name: str, *, place: str | None = None) -> None:
    real = getattr(owner, name)
    told = place or name

    @functools.wraps(real)
    async def later(self: Any, *arguments: Any, **more: Any) -> Any:
        if _host(self, arguments).endswith("broken.test") or ".broken.test:" in _host(self, arguments):
            await asyncio.sleep(0)
        _check(told, self, arguments)
        return await real(self, *arguments, **more)

    setattr(owner, name, later)


def _wrap_first(owner: type, name: str) -> None:
    """Raise at the first call only: the connection's end must make good what is missing."""
    real = getattr(owner, name)

    @functools.wraps(real)
    def first(self: Any, *arguments: Any, **more: Any) -> Any:
        if not getattr(self, "failed_once", False):
            self.failed_once = True
            _check(name, self, arguments)
        return real(self, *arguments, **more)

    setattr(owner, name, first)


def _wrap_after(owner: type, name: str, place: str) -> None:
    """Raise after the real call: its work is done, and still nothing may go on."""
    real = getattr(owner, name)

    @functools.wraps(real)
    def afterwards(self: Any, *arguments: Any, **more: Any) -> Any:
        found = real(self, *arguments, **more)
        _check(place, self, arguments)
        return found

    setattr(owner, name, afterwards)


def _break() -> None:
    _wrap(Admission, "http_connect")
    _wrap(Admission, "tls_clienthello")
    _wrap(worker.Worker, "_certify_leaf", place="tls_start_client")
    _wrap(worker.Worker, "next_layer")
    _wrap(Verdict, "requestheaders")
    _wrap(Scrub, "responseheaders")
    _wrap(Record, "response")
    _wrap(Record, "error")
    _wrap_later(Channel, "admit")
    _wrap_later(Exchange, "_provide", place="resolve")
    _wrap_later(Exchange, "judge")
    for name in ("upload", "upload_end", "on_response", "judge_response", "download", "download_end"):
        _wrap(Exchange, name)
    _wrap_first(Exchange, "finish")
    _wrap_after(Exchange, "upload", "after_upload")
    _wrap_after(Exchange, "download", "after_download")
    _wrap_after(Exchange, "_make_forward", "after_decision")


bind = worker.bind


def main(
    control: socket.socket, settings: bytes, keeper: Path, index: int, bound: list[Bound], doors: socket.socket
) -> None:
    """Serve as the real worker does, broken."""
    _break()
    worker.main(control, settings, keeper, index, bound, doors)
