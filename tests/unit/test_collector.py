"""The collector is off inside the block and afterwards as it was."""

import gc
from collections.abc import Iterator

import pytest

from tidegate.collector import no_collection


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    yield
    gc.enable()


def test_it_is_off_inside_and_on_again_after() -> None:
    with no_collection():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_exception_turns_it_on_again() -> None:
    with pytest.raises(KeyError), no_collection():
        raise KeyError
    assert gc.isenabled()


def test_what_was_off_stays_off() -> None:
    gc.disable()
    with no_collection():
        pass
    assert not gc.isenabled()
