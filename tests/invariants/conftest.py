"""What the invariants' tests share: they are never skipped, so a machine that cannot hold one of them fails it."""

import os

import pytest


@pytest.fixture
def as_root() -> None:
    """Two users at once, or a look at another user's process: only root can have that."""
    if os.geteuid() != 0:
        pytest.fail("this invariant can be shown by root only, and is never skipped: run the tests as root")
