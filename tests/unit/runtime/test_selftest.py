"""The start-up self-test: it passes on the engine we pin, and it notices each change it is there for."""

import asyncio
from pathlib import Path

import mitmproxy.version
import pytest
from mitmproxy.proxy.layers.http._hooks import HttpRequestHeadersHook

from tidegate.config.model import GateSettings, Settings
from tidegate.errors import LaunchError
from tidegate.runtime import http_layer
from tidegate.runtime.handler import ConnectionHandler
from tidegate.runtime.selftest import self_test
from tidegate.runtime.tls import Contexts
from tidegate.runtime.worker import Worker


class NoSigner:
    async def sign_leaf(self, *_: object, **__: object) -> None:
        raise AssertionError("no certificate is needed")


def settings() -> GateSettings:
    return Settings(state_dir="/nonexistent").for_gate()


async def run() -> None:
    worker = Worker(settings(), Path("/nonexistent"), 0, [])
    worker._make_engine()
    worker.contexts = Contexts(NoSigner(), settings().upstream)  # type: ignore[arg-type]
    await self_test(worker, settings(), worker.contexts, worker.channels)


async def test_passes_on_the_pinned_engine() -> None:
    await run()


async def test_refuses_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mitmproxy.version, "VERSION", "99.0.0")
    with pytest.raises(LaunchError, match=r"99\.0\.0 is installed"):
        await run()


async def test_notices_an_engine_that_does_not_reuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_layer.GateHttpLayer, "_find", lambda *_: None)
    with pytest.raises(LaunchError, match="2 upstreams for two requests"):
        await run()


async def test_notices_a_dispatch_that_swallows_an_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    hook = ConnectionHandler._hook

    def swallowing(self: ConnectionHandler, command: HttpRequestHeadersHook) -> None:
        try:
            hook(self, command)
        except RuntimeError:
            return

    monkeypatch.setattr(ConnectionHandler, "_hook", swallowing)
    with pytest.raises(LaunchError, match="at a hook that raises: the connection stayed open"):
        await run()


async def test_leaves_nothing_behind() -> None:
    before = asyncio.all_tasks()
    await run()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() <= before
