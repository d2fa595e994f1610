import pytest

from tidegate.credentials.sources.value import MOST_BYTES, secret_from
from tidegate.errors import CredentialError

GOOD = b"real-secret-0123456789-abcdefghij"


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(GOOD, id="as_it_is"),
        pytest.param(GOOD + b"\n", id="newline"),
        pytest.param(GOOD + b"\r\n", id="crlf"),
        pytest.param(GOOD + b"\n\r\n\n", id="several"),
    ],
)
def test_trailing_line_ends_are_dropped(raw: bytes) -> None:
    assert secret_from(raw, where="here").reveal() == GOOD


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        pytest.param(b"", "empty", id="empty"),
        pytest.param(b"\r\n", "empty", id="only_line_ends"),
        pytest.param(GOOD + b"\nX-Evil: 1", "line break", id="inner_lf"),
        pytest.param(GOOD + b"\rX", "carriage return", id="inner_cr"),
        pytest.param(GOOD + b"\0", "NUL", id="nul"),
        pytest.param(b"hunter2", "weaker than 80 bits", id="short"),
        pytest.param(b"a" * 500, "weaker than 80 bits", id="one_letter_alphabet"),
        pytest.param(b"0123456789012345678", "weaker than 80 bits", id="nineteen_digits"),
        pytest.param(GOOD * MOST_BYTES, "longer than", id="huge"),
    ],
)
def test_what_cannot_be_a_secret_is_refused_without_quoting_it(raw: bytes, says: str) -> None:
    with pytest.raises(CredentialError, match=says) as caught:
        secret_from(raw, where="here")
    assert "hunter2" not in str(caught.value)
    assert "X-Evil" not in str(caught.value)


def test_a_short_one_may_be_insisted_on_but_never_one_with_a_line_break() -> None:
    assert secret_from(b"hunter2", where="here", unsafe_short=True).reveal() == b"hunter2"
    with pytest.raises(CredentialError):
        secret_from(b"hun\nter2", where="here", unsafe_short=True)
