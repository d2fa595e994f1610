import pytest

from tidegate.policy.methods import KNOWN_METHODS, parse_method
from tidegate.policy.reasons import Reason


@pytest.mark.parametrize("method", sorted(KNOWN_METHODS))
def test_known_method_is_itself(method: str) -> None:
    assert parse_method(method) == method
    assert parse_method(method.encode()) == method


@pytest.mark.parametrize("text", ["get", "pOsT", "Get", "connect", "tRACE", "delete"])
def test_P_33_other_spelling_of_a_known_method(text: str) -> None:
    assert parse_method(text) is Reason.MALFORMED_TARGET
    assert parse_method(text.encode()) is Reason.MALFORMED_TARGET


@pytest.mark.parametrize("text", ["", " GET", "GET ", "GET\0", "G ET", "GÉT", "GET\r\n", "(", "A" * 33, "ＧＥＴ"])
def test_no_token(text: str) -> None:
    assert parse_method(text) is Reason.MALFORMED_TARGET
    assert parse_method(text.encode()) is Reason.MALFORMED_TARGET


@pytest.mark.parametrize("text", ["X-Y", "FOO", "foo", "M-SEARCH"])
def test_unknown_token_passes_as_it_stands(text: str) -> None:
    assert parse_method(text) == text
