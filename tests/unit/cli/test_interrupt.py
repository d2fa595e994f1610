"""A signal to end: it is acted on whenever it comes, and what follows does not break the unwinding."""

import os
import signal
import subprocess
import sys

import pytest

_UNWINDS = """
import os, signal, sys
from tidegate.cli.interrupt import Interrupted, interruptible
try:
    with interruptible():
        try:
            print("up", flush=True)
            signal.pause()
        finally:
            for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                os.kill(os.getpid(), each)
            print("unwound", flush=True)
except Interrupted as told:
    print(told)
    sys.exit(told.exit_code)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_unwinds_and_the_next_does_not_break_that(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", _UNWINDS], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(number)
        assert process.stdout.read() == f"unwound\n{number.name}\n"
        assert process.wait(10) == 128 + number


def test_a_signal_that_is_ignored_still_is() -> None:
    code = (
        "import os, signal; from tidegate.cli.interrupt import interruptible\n"
        "with interruptible():\n  os.kill(os.getpid(), signal.SIGHUP)\nprint('on')"
    )
    done = subprocess.run(
        ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", sys.executable, "-c", code],
        capture_output=True, text=True, timeout=30, env=dict(os.environ), check=True,
    )  # fmt: skip
    assert done.stdout == "on\n"


_UNAWARE = """
import select, signal, sys, threading
from tidegate.cli.interrupt import Interrupted, interruptible

def strike():
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)  # so that the main thread is not woken by it

try:
    with interruptible():
        threading.Timer(0.05, strike).start()
        select.select([], [], [], 20)
except Interrupted as told:
    sys.exit(told.exit_code)
"""


def test_a_signal_that_wakes_nobody_is_acted_on_all_the_same() -> None:
    done = subprocess.run([sys.executable, "-c", _UNAWARE], timeout=10, check=False)
    assert done.returncode == 143


def test_afterwards_everything_is_as_it_was() -> None:
    code = (
        "import os, signal, threading; from tidegate.cli.interrupt import interruptible\n"
        "before = len(os.listdir('/proc/self/fd'))\n"
        "with interruptible():\n  pass\n"
        "assert len(os.listdir('/proc/self/fd')) == before and threading.active_count() == 1\n"
        "os.kill(os.getpid(), signal.SIGTERM)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=10, check=False).returncode == -signal.SIGTERM
