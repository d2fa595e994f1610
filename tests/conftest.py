"""What holds for every test: how they share the machine, and what counts as a failure anywhere.

Nothing hidden: factories live in `tests/lab`, fixtures beside the tests that use them.
"""

import asyncio
import functools
import inspect
import logging
import os
import signal
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import HealthCheck, settings

# Cores are shared with other tests, so time limits of single examples would only be noise.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("deep", deadline=None, max_examples=5000, suppress_health_check=list(HealthCheck))
settings.load_profile("default")

# A callback that holds the loop longer than this fails its test. Far above the gate's own bound
# of 5 ms a turn: it must catch a blocking call, not a busy machine.
SLOW_CALLBACK_SECONDS = 1.0


def pytest_configure() -> None:
    """Let no child inherit that a signal is ignored: a shell's `&` and `nohup` do that to all they start.

    A handler that does nothing is the same for this process, and is default again after exec.
    """
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda _number, _frame: None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have each test on a loop watched for callbacks that block it."""
    for item in items:
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            item.obj = _never_blocking(item.obj)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """With NO_SKIPS set, as CI has it, a run in which anything was skipped has failed."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter is not None else []
    if os.environ.get("NO_SKIPS") and skipped and session.exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


class _SlowCallbacks(logging.Handler):
    """Collects what asyncio's debug mode says about callbacks that held the loop."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if str(record.msg).startswith("Executing"):
            self.lines.append(record.getMessage())


def _never_blocking(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    @functools.wraps(test)
    async def watched(*args: object, **kwargs: object) -> None:
        loop, slow, logger = asyncio.get_running_loop(), _SlowCallbacks(), logging.getLogger("asyncio")
        loop.slow_callback_duration = SLOW_CALLBACK_SECONDS
        loop.set_debug(True)
        logger.addHandler(slow)
        try:
            await test(*args, **kwargs)
        finally:
            logger.removeHandler(slow)
            loop.set_debug(False)
        if slow.lines:
            pytest.fail("the event loop was blocked: " + "; ".join(slow.lines), pytrace=False)

    return watched
