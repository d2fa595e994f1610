"""The jobs, what is taken from them, and what they must reach."""

import dataclasses
from collections.abc import Callable, Mapping

from tests.bench.load import Job, Result
from tests.bench.questions import Answers
from tests.bench.rounds import Rounds, Spread

__all__ = [
    "BULK",
    "CAPTURED",
    "CAPTURED_KEPT",
    "EVENTS",
    "FRESH",
    "JOBS",
    "KEPT",
    "LONE",
    "PLAIN",
    "Line",
    "answered",
    "lines",
    "number",
    "ratio_text",
]

PLAIN = Job("HTTP, kept alive", "http", ("--path", "/1k", "--length", "1024"))
KEPT = Job("HTTPS, kept alive", "https", ("--path", "/with-credential/1k", "--length", "1024"), with_credential=True)
FRESH = Job("HTTPS, new connection", "https", (*KEPT.options, "--fresh"), with_credential=True)
LONE = Job("HTTPS, one at a time", "https", (*KEPT.options, "--lanes", "1"), with_credential=True)
_ONE = ("--lanes", "1", "--requests", "1", "--timeout", "120")
DOWNLOAD = Job(
    "200 MB down",
    "https",
    ("--path", "/with-credential/200m", "--length", "209715200", *_ONE),
    with_credential=True,
    seconds=None,
)
UPLOAD = Job(
    "200 MB up",
    "https",
    ("--path", "/upload", "--upload", "209715200", *_ONE),
    with_credential=True,
    seconds=None,
)
EVENTS = Job("server-sent events", "events", ("--events", *_ONE), with_credential=True, seconds=None)
CAPTURED_KEPT = dataclasses.replace(KEPT, name="transparent, kept alive")
CAPTURED_FRESH = dataclasses.replace(FRESH, name="by name, new connection")
CAPTURED = (CAPTURED_KEPT, CAPTURED_FRESH)
"""Without a proxy against with one, at the same gate."""
JOBS = (PLAIN, KEPT, FRESH, LONE, DOWNLOAD, UPLOAD, EVENTS)
BULK = (DOWNLOAD, UPLOAD)


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of the table. `met` None: there is no target, or nothing was measured."""

    job: str
    figure: str
    direct: str
    rival: str
    ours: str
    ratio: str
    target: str = ""
    met: bool | None = None


def number(value: float | None, unit: str) -> str:
    """Return a figure with three digits and its unit."""
    if value is None:
        return "–"
    return f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 2}f} {unit}"


def ratio_text(ratio: Spread | None) -> str:
    """Return a ratio with its spread."""
    return f"{ratio.median:.2f}× ({ratio.low:.2f}–{ratio.high:.2f})" if ratio else "–"


def _cpu(result: Result) -> float:
    return result.cpu_us


def _line(
    rounds: Rounds[Result],
    job: Job,
    figure: str,
    unit: str,
    of: Callable[[Result], float],
    *,
    ratio: str | None = None,
    goal: tuple[str, bool | None] = ("", None),
) -> Line:
    """Return a line of medians; the ratio is mitmdump's to ours unless given."""
    direct, rival, ours = (number(rounds.median(name, of), unit) for name in ("direct", "mitmdump", "tidegate"))
    shown = ratio if ratio is not None else ratio_text(rounds.ratio("mitmdump", "tidegate", of))
    return Line(job.name, figure, "–" if of is _cpu else direct, rival, ours, shown, *goal)


def _at_least(ratio: Spread | None, wanted: float) -> tuple[str, bool | None]:
    return f"≥ {wanted}×", None if ratio is None else ratio.median >= wanted


def _below(value: float | None, wanted: float, text: str) -> tuple[str, bool | None]:
    return text, None if value is None else value < wanted


def lines(rounds: Mapping[Job, Rounds[Result]], growth_mb: Mapping[tuple[Job, str], float]) -> list[Line]:
    """Return the table's lines for the jobs that were run."""
    found: list[Line] = []
    for job, least in ((PLAIN, None), (KEPT, 2.5), (FRESH, 2.2)):
        if job not in rounds:
            continue
        these = rounds[job]
        goal = _at_least(these.ratio("mitmdump", "tidegate", _cpu), least) if least else ("", None)
        found.append(_line(these, job, "CPU a request", "µs", _cpu, goal=goal))
        found.append(_line(these, job, "requests a second", "", lambda r: r.per_second, ratio="–"))
        found.append(_line(these, job, "p50", "ms", lambda r: r.p50_ms))
        found.append(_tail(these, job))
    if LONE in rounds:
        found.append(_added(rounds[LONE]))
    for job in BULK:
        if job in rounds:
            found.append(_line(rounds[job], job, "rate", "MB/s", lambda r: r.bytes_per_second / 1e6, ratio="–"))
            found.append(_growth(job, growth_mb))
    found += [_captured(rounds[job], job) for job in CAPTURED if job in rounds]
    if EVENTS in rounds:
        these = rounds[EVENTS]
        goal = _below(these.median("tidegate", lambda r: r.p99_ms), 2, "< 2 ms")
        found.append(_line(these, EVENTS, "delay of an event, p50", "ms", lambda r: r.p50_ms, ratio="–"))
        found.append(_line(these, EVENTS, "delay of an event, p99", "ms", lambda r: r.p99_ms, ratio="–", goal=goal))
    return found


def _tail(rounds: Rounds[Result], job: Job) -> Line:
    if job is not KEPT:
        return _line(rounds, job, "p99", "ms", lambda r: r.p99_ms)
    spread = rounds.median("tidegate", lambda r: r.p99_ms / r.p50_ms if r.p50_ms else 0.0)
    shown = "–" if spread is None else f"{spread:.2f} × p50"
    goal = _below(spread, 3, "< 3 × p50")
    return _line(rounds, job, "p99 at 16 connections", "ms", lambda r: r.p99_ms, ratio=shown, goal=goal)


def _added(rounds: Rounds[Result]) -> Line:
    here, there = (rounds.median(name, lambda r: r.p50_ms) for name in ("tidegate", "direct"))
    added = None if here is None or there is None else here - there
    goal = _below(added, 1.5, "added < 1.5 ms")
    return _line(rounds, LONE, "p50", "ms", lambda r: r.p50_ms, ratio=f"added {number(added, 'ms')}", goal=goal)


def _captured(rounds: Rounds[Result], job: Job) -> Line:
    ratio = rounds.ratio("captured", "tidegate", _cpu)
    ours, other = (number(rounds.median(name, _cpu), "µs") for name in ("captured", "tidegate"))
    goal = ("≤ 1.05× with a proxy", None if ratio is None else ratio.median <= 1.05)
    return Line(job.name, "CPU a request", "–", "–", f"{ours}, by proxy {other}", ratio_text(ratio), *goal)


def answered(answers: Answers) -> list[Line]:
    """Return the lines of the responder."""
    rate = 1e6 / answers.cpu_us
    shown = f"{rate:,.0f} ({answers.cpu_us:.0f} µs each)"
    waits = f"{answers.p99_ms:.2f} ms (p50 {answers.p50_ms:.2f})"
    return [
        Line("responder", "answers a second a core", "–", "–", shown, "–", "≥ 5,000", rate >= 5000),
        Line("responder", "p99, one at a time", "–", "–", waits, "–", "< 2 ms", answers.p99_ms < 2),
    ]


def _growth(job: Job, growth_mb: Mapping[tuple[Job, str], float]) -> Line:
    rival, ours = (growth_mb.get((job, name)) for name in ("mitmdump", "tidegate"))
    goal = _below(ours, 20, "< 20 MB")
    return Line(job.name, "memory grows by", "–", number(rival, "MB"), number(ours, "MB"), "–", *goal)
