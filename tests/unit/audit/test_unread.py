"""What the system says against reading, in words with a next step."""

import errno
import os

import pytest

from tidegate.audit.unread import Unreadable, reading


@pytest.mark.parametrize(
    ("code", "what"),
    [
        (errno.EACCES, "permission denied"),
        (errno.EPERM, "permission denied"),
        (errno.ELOOP, "a link stands in its place"),
        (errno.ENOTDIR, "no folder stands in its place"),
        (errno.ENXIO, "this is no regular file"),
        (errno.EAGAIN, "a process holds a lease on it"),
        (errno.EIO, os.strerror(errno.EIO)),
    ],
)
def test_each_error_has_words_and_a_next_step(code: int, what: str) -> None:
    with pytest.raises(Unreadable) as caught, reading("gate-1/"):
        raise OSError(code, os.strerror(code), 7)  # a descriptor where a name could be
    assert (caught.value.what, caught.value.where, bool(caught.value.hint)) == (what, "gate-1/", True)
    assert not caught.value.gone


def test_what_is_gone_is_told_apart() -> None:
    with pytest.raises(Unreadable) as caught, reading("gate-1/"):
        os.stat("/nonexistent/file")
    assert caught.value.gone
