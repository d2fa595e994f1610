"""A URL and a method, as the question that the gate's own parsers make of them."""

import pytest

from tidegate.policy.decide import Ask
from tidegate.policy.question import question
from tidegate.policy.reasons import Reason


@pytest.mark.parametrize(
    ("method", "url", "told"),
    [
        pytest.param("GET", "https://A.test/x?y#z", ("a.test", 443, "https", "GET", "/x"), id="https"),
        pytest.param("POST", "http://a.test", ("a.test", 80, "http", "POST", "/"), id="no path"),
        pytest.param(
            "CONNECT", "https://a.test:444/x", ("a.test", 444, "https", None, None), id="the connection alone"
        ),
        pytest.param("GET", "tcp://a.test:5432", ("a.test", 5432, "tcp", None, None), id="tcp"),
    ],
)
def test_asks(method: str, url: str, told: tuple[object, ...]) -> None:
    ask = question(method, url)
    assert isinstance(ask, Ask)
    assert (ask.host, ask.port, ask.protocol, ask.method, ask.path.text if ask.path else None) == told


@pytest.mark.parametrize(
    ("method", "url", "reason"),
    [
        pytest.param("GET", "ftp://a.test/", Reason.SCHEME_NOT_ALLOWED, id="scheme"),
        pytest.param("GET", "a.test", Reason.SCHEME_NOT_ALLOWED, id="no scheme"),
        pytest.param("GET", "tcp://a.test", Reason.MALFORMED_TARGET, id="tcp without a port"),
        pytest.param("GET", "https:///x", Reason.MALFORMED_HOST, id="no host"),
    ],
)
def test_tells_why_it_cannot_be_asked(method: str, url: str, reason: Reason) -> None:
    assert question(method, url) is reason
