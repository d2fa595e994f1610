"""The pytest plug-in, as another project has it: found by its entry point, on the log of a real gate."""

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.lab.certs import Authority
from tests.lab.dns import addresses, dns_server
from tests.lab.gate import Gate, configuration, gate, rule
from tests.lab.upstream import says, upstream

pytest_plugins = ["pytester"]

API = "api.allowed.test"


class Running(NamedTuple):
    gate: Gate
    port: int


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with (
        Authority() as ca,
        dns_server({API: addresses("127.0.0.1")}) as dns,
        upstream(ca=ca, names=(API,), routes={"/good": says(b"hello")}) as server,
    ):
        config = configuration(allow=[rule(API, port=server.port, paths=["/good"])], policy={}, dns=dns, ca=ca)
        with gate(config) as one:
            yield Running(one, server.port)


ASKS = """
import pytest, ssl, urllib.request, urllib.error

PROXY, CA, PORT = {proxy!r}, {ca!r}, {port}

def ask(url):
    context = ssl.create_default_context(cafile=CA)
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({{"https": PROXY, "http": PROXY}}), urllib.request.HTTPSHandler(context=context)
    )
    try:
        return opener.open(url, timeout=10).status
    except OSError as fault:
        return getattr(fault, "code", None)
"""


@pytest.fixture
def project(pytester: pytest.Pytester, running: Running, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project of somebody's, with a function `ask` that goes through the gate."""
    monkeypatch.delenv("TIDEGATE_STATE_DIR", raising=False)
    monkeypatch.delenv("TIDEGATE_CONFIG", raising=False)
    session = running.gate.session()
    text = ASKS.format(
        proxy=session.proxy_url,
        ca=str(running.gate.state / "ca.pem"),
        port=running.port,
    )
    pytester.makepyfile(asks=text)
    pytester.makeini(f"[pytest]\ntidegate_state_dir = {running.gate.state}\npythonpath = .\n")
    return pytester


TESTS = """
from asks import PORT, ask

def test_allowed(egress):
    ask(f"https://{API}:{PORT}/good")
    egress.assert_allowed("{API}")

def test_denied(egress):
    ask("https://evil.test/")
    egress.assert_denied("evil.test")
    egress.assert_denied("evil.test", reason="not_in_allowlist")

def test_denied_path(egress):
    ask(f"https://{API}:{PORT}/bad")
    egress.assert_denied("{API}", reason="path_not_allowed")
"""


def _tests(body: str) -> str:
    return body.replace("{API}", API)


def test_what_an_agent_tried_is_asserted(project: pytest.Pytester) -> None:
    project.makepyfile(test_it=_tests(TESTS))
    project.runpytest_subprocess("-q").assert_outcomes(passed=3)


def test_an_assertion_that_does_not_hold_fails_with_what_was_seen(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_it=_tests(
            """
            from asks import PORT, ask

            def test_nothing_of_another_test_counts(egress):
                egress.wait_seconds = 0.2
                egress.assert_denied("evil.test")

            def test_a_denial_is_not_let_through(egress):
                egress.wait_seconds = 0.2
                ask(f"https://{API}:{PORT}/bad")
                egress.assert_allowed("{API}")

            def test_what_was_let_through_was_not_denied(egress):
                egress.wait_seconds = 0.2
                ask(f"https://{API}:{PORT}/good")
                egress.assert_denied("{API}")

            def test_another_reason_is_another_denial(egress):
                egress.wait_seconds = 0.2
                ask("https://evil.test/")
                egress.assert_denied("evil.test", reason="metadata")

            def test_another_session_is_another(egress):
                egress.wait_seconds = 0.2
                ask("https://evil.test/")
                egress.of("nobody").assert_denied("evil.test")
            """
        )
    )
    result = project.runpytest_subprocess("-q")
    result.assert_outcomes(failed=5)
    result.stdout.fnmatch_lines(["*no denial of evil.test for metadata within 0.2 s*"])
    result.stdout.fnmatch_lines(["*deny conn evil.test (not_in_allowlist)*"])


def test_the_environment_names_the_gate_too(
    project: pytest.Pytester, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.makeini("[pytest]\npythonpath = .\n")
    monkeypatch.setenv("TIDEGATE_STATE_DIR", str(running.gate.state))
    project.makepyfile(test_it=_tests(TESTS))
    project.runpytest_subprocess("-q").assert_outcomes(passed=3)


def test_without_a_gate_the_test_fails_and_says_what_to_do(project: pytest.Pytester) -> None:
    project.makeini("[pytest]\ntidegate_state_dir = nowhere\n")
    project.makepyfile("def test_it(egress): pass")
    result = project.runpytest_subprocess("-q")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*nowhere/audit: start `tidegate up`, or set tidegate_state_dir*"])


def test_a_project_that_does_not_ask_loads_nothing_of_it(project: pytest.Pytester) -> None:
    project.makeini("[pytest]\n")
    project.makepyfile(
        "import sys\ndef test_it():\n"
        "    assert 'tidegate.sdk.pytest_plugin' in sys.modules and 'msgspec' not in sys.modules"
    )
    project.runpytest_subprocess("-q", "-p", "no:hypothesispytest").assert_outcomes(passed=1)
