"""One run of the load generator: a job put to a contender, and what came of it."""

import dataclasses
import json
import subprocess
from collections.abc import Sequence
from typing import Any

from tests.bench.contender import Contender
from tests.bench.program import program
from tests.bench.upstream import CA_NAME, Upstream

__all__ = ["Invalid", "Job", "Result", "command", "parse", "run"]

_ERRORS_TOLERATED = 0.001


class Invalid(Exception):
    """A run whose figures mean nothing: errors, or not what it claims to be."""


@dataclasses.dataclass(frozen=True)
class Job:
    """What is asked: `options` of the generator; `kind` chooses port and way (`http`, `https`, `events`)."""

    name: str
    kind: str
    options: tuple[str, ...]
    with_credential: bool = False
    seconds: float | None = 3.0


@dataclasses.dataclass(frozen=True)
class Result:
    """The figures of one run. `cpu_us` is per request and 0 without a process to watch."""

    requests: int
    errors: int
    per_second: float
    cpu_us: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float
    bytes_per_second: float
    connections: int
    resumed: int
    issuer: str
    first_fault: str


def command(job: Job, contender: Contender, upstream: Upstream, *, scale: float = 1.0) -> list[str]:
    """Return the generator's argument list; `scale` shortens the run."""
    port = {"http": upstream.http_port, "https": upstream.https_port, "events": upstream.events_port}[job.kind]
    target = [
        "--target",
        f"{contender.host}:{port}",
        "--at",
        contender.proxy or f"{contender.captured or upstream.host}:{port}",
    ]
    via = "none" if not contender.proxy else "absolute" if job.kind == "http" else "connect"
    how = ["--via", via, *([] if job.kind == "http" else ["--tls"])]
    headers = [part for line in contender.headers(job.with_credential) for part in ("--header", line)]
    time = ["--duration", str(job.seconds * scale)] if job.seconds else []
    watch = ["--watch", ",".join(map(str, contender.pids()))] if contender.inspects else []
    return [str(program("load")), *target, *how, *job.options, *headers, *time, *watch]


def parse(text: str) -> Result:
    """Return the result that the generator printed."""
    raw: dict[str, Any] = json.loads(text)
    return Result(
        requests=raw["requests"],
        errors=raw["errors"],
        per_second=raw["per_second"],
        cpu_us=raw.get("cpu_us", 0.0),
        **{f"{name}_ms": raw["ms"][name] for name in ("p50", "p90", "p99", "max")},
        bytes_per_second=(raw["bytes_down"] + raw["bytes_up"]) / raw["seconds"],
        connections=raw["connections"],
        resumed=raw["resumed"],
        issuer=raw["issuer"],
        first_fault=raw["first_fault"],
    )


def run(job: Job, contender: Contender, upstream: Upstream, *, core: int, scale: float = 1.0) -> Result:
    """Run the generator on CPU `core`; raise `Invalid` when its figures must not be used."""
    line: Sequence[str] = [
        *contender.client,
        "taskset",
        "-c",
        str(core),
        *command(job, contender, upstream, scale=scale),
    ]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300)
    if done.returncode == 2 or not done.stdout:
        raise RuntimeError(f"{' '.join(line)}: {done.stderr}")
    result = parse(done.stdout)
    if result.requests == 0 or result.errors > _ERRORS_TOLERATED * (result.requests + result.errors):
        raise Invalid(f"{result.errors} errors, {result.requests} good ({result.first_fault})")
    if job.kind != "http" and (CA_NAME in result.issuer) == contender.inspects:
        raise Invalid(f"the certificate is from «{result.issuer}»: not what this contender should show")
    return result
