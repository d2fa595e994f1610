"""The generator counts what it should, and nothing else. Right and wrong answers of a real upstream."""

import json
import subprocess
import threading
from collections.abc import Iterator

import pytest

from tests.bench.load import Result
from tests.bench.program import program
from tests.bench.rounds import Rounds, order
from tests.bench.upstream import CA_NAME, SECRET, Upstream, upstream

TWENTY = ("--lanes", "2", "--requests", "20")


@pytest.fixture(scope="module")
def server() -> Iterator[Upstream]:
    with upstream(core=0) as running:
        yield running


def ask(port: int, *options: str) -> tuple[int, dict[str, object]]:
    line = [str(program("load")), "--target", f"localhost:{port}", "--at", f"127.0.0.1:{port}", *TWENTY, *options]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60)
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize(
    ("kind", "options", "wanted"),
    [
        pytest.param("http", ("--path", "/1k", "--length", "1024"), {"requests": 20, "errors": 0}, id="plain"),
        pytest.param(
            "http", ("--path", "/1k", "--length", "1024", "--lanes", "1"), {"connections": 1}, id="kept-alive"
        ),
        pytest.param("http", ("--path", "/1k", "--length", "1024", "--fresh"), {"connections": 20}, id="fresh"),
        pytest.param(
            "https", ("--tls", "--path", "/small", "--length", "16"), {"requests": 20, "resumed": 0}, id="tls"
        ),
        pytest.param(
            "https",
            ("--tls", "--path", "/small", "--length", "16", "--fresh", "--resume", "--lanes", "1"),
            {"resumed": 19},
            id="resumed-all-but-the-first",
        ),
        pytest.param(
            "http", ("--path", "/upload", "--upload", "100000"), {"bytes_up": 2000000}, id="upload-is-counted"
        ),
        pytest.param("http", ("--path", "/1m", "--length", "1048576"), {"bytes_down": 20971520}, id="download"),
        pytest.param(
            "http",
            ("--path", "/with-credential/1k", "--length", "1024", "--header", f"Authorization: Bearer {SECRET}"),
            {"requests": 20},
            id="the-secret-passes",
        ),
    ],
)
def test_counts_right_answers(server: Upstream, kind: str, options: tuple[str, ...], wanted: dict[str, int]) -> None:
    code, result = ask(server.http_port if kind == "http" else server.https_port, *options)
    assert code == 0, result
    assert {name: result[name] for name in wanted} == wanted


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        pytest.param(("--path", "/absent", "--length", "any"), "status", id="404"),
        pytest.param(("--path", "/small", "--length", "1024"), "length", id="wrong-length"),
        pytest.param(("--path", "/small", "--length", "any", "--tls"), "tls", id="no-tls-there"),
        pytest.param(("--path", "/with-credential/1k", "--length", "1024"), "status", id="no-secret"),
        pytest.param(("--via", "connect", "--path", "/small", "--length", "16"), "proxy_refused", id="no-proxy-there"),
    ],
)
def test_names_wrong_answers(server: Upstream, options: tuple[str, ...], fault: str) -> None:
    code, result = ask(server.http_port, *options)
    assert code == 1
    assert result["faults"] == {fault: 20}
    assert result["requests"] == 0


def test_verifies_a_certificate_when_asked(server: Upstream) -> None:
    options = ("--tls", "--path", "/small", "--length", "16")
    code, result = ask(server.https_port, *options, "--ca", str(server.ca_file))
    assert (code, CA_NAME in str(result["issuer"])) == (0, True)
    code, result = ask(server.https_port, *options, "--ca", "/etc/ssl/certs/ca-certificates.crt")
    assert (code, result["faults"]) == (1, {"tls": 20})


def test_measures_the_delay_of_each_event(server: Upstream) -> None:
    code, result = ask(server.events_port, "--tls", "--events", "--lanes", "1", "--requests", "1")
    assert code == 0, result
    assert result["requests"] == 300
    delays = result["ms"]
    assert isinstance(delays, dict)
    assert 0 < delays["p50"] < 100


def test_refuses_a_get_that_would_take_any_error_page(server: Upstream) -> None:
    line = [str(program("load")), "--target", f"localhost:{server.http_port}"]
    done = subprocess.run(line, capture_output=True, text=True)
    assert (done.returncode, "--length" in done.stderr) == (2, True)


def test_reads_the_cpu_of_a_watched_process(server: Upstream) -> None:
    # A process that burns CPU for as long as the load runs is seen as such.
    burner = subprocess.Popen(["sh", "-c", "while :; do :; done"])
    # The window is short; a stuck one must not leave a burner behind.
    guard = threading.Timer(30, burner.kill)
    guard.start()
    try:
        line = [str(program("load")), "--target", f"localhost:{server.http_port}", "--path", "/small", "--length", "16"]
        timing = ["--lanes", "1", "--duration", "1", "--warmup", "0", "--watch", str(burner.pid)]
        result = json.loads(subprocess.run([*line, *timing], capture_output=True, text=True, check=True).stdout)
    finally:
        guard.cancel()
        burner.kill()
        burner.wait()
    assert result["cpu_seconds"] > 0.1


def test_every_other_round_goes_backwards() -> None:
    assert [name for _, name in order("abc", 3)] == list("abccbaabc")


def test_rounds_without_figures_make_no_ratio() -> None:
    rounds = Rounds[Result]()
    rounds.add("a", None)
    assert rounds.ratio("a", "b", lambda result: result.cpu_us) is None
    assert rounds.median("a", lambda result: result.cpu_us) is None
