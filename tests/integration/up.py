"""What the tests of a whole gate share: its configuration, its processes, and waiting for them."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.lab.gate import Gate, configuration, rule

__all__ = ["CREDENTIAL", "SECRET", "children", "config", "every", "ready", "status", "told", "until"]

SECRET = "a-secret-that-is-long-enough-to-be-one-0123456789"
CREDENTIAL = {
    "demo": {
        "source": {"env": "DEMO_TOKEN"},
        "for": [{"host": "api.allowed.test"}],
        "place": {"header": "Authorization", "format": "Bearer {secret}"},
        "placeholder": {"shape": "generic", "env": "DEMO_TOKEN"},
    }
}


def config(**more: Any) -> dict[str, Any]:
    """Return a configuration of one policy and one credential; `more` are further keys."""
    return configuration(allow=[rule("api.allowed.test", credential="demo")], credentials=CREDENTIAL, **more)


def until(condition: Callable[[], Any], *, timeout: float = 10) -> Any:
    """Wait until a condition holds, and return what it gave."""
    end = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)  # another process's doing: nothing here can be waited for
    return value


def status(one: Gate) -> dict[str, Any]:
    code, answer = one.admin("GET", "/v1/status")
    assert code == 200
    return dict(answer)


def ready(one: Gate) -> bool:
    return one.admin("GET", "/readyz")[0] == 200


def children(one: Gate) -> dict[str, list[int]]:
    """Return the pids of the gate's processes by role."""
    found: dict[str, list[int]] = {"keeper": [], "minter": [], "zygote": [], "worker": []}
    parents: dict[int, int] = {}
    words: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                words[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
    for pid, line in words.items():
        if parents[pid] == one.process.pid:
            for role, mark in (
                ("keeper", "keeper.__main__"),
                ("minter", "keeper.minter"),
                ("zygote", "runtime.zygote"),
            ):
                if mark in line:
                    found[role].append(pid)
    found["worker"] = [pid for pid, parent in parents.items() if parent in found["zygote"]]
    return found


def every(one: Gate) -> list[int]:
    return [pid for pids in children(one).values() for pid in pids]


def told(lines: list[dict[str, Any]], pid: int, role: str) -> list[dict[str, Any]]:
    """Return the faults of the log that tell of this child's end."""
    word = f"(pid {pid})" if role == "worker" else role
    return [line for line in lines if word in line["fault"]["detail"] and line["fault"]["name"].endswith("_ended")]
