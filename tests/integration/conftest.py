"""The container engine of this test process, and what stands outside of it: made once, by the first test that asks."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.engine import Engine, engine
from tests.lab.roots import unpacked_root
from tests.lab.sidecar import Outside, outside


@pytest.fixture(scope="session")
def docker() -> Iterator[Engine]:
    with engine() as running:
        running.load("base", "sandbox")
        running.builder()
        running.build("tidegate", target="gate")
        yield running


@pytest.fixture(scope="session")
def beyond(docker: Engine) -> Iterator[Outside]:
    with outside(docker) as servers:
        yield servers


@pytest.fixture(scope="session")
def root() -> Iterator[Path]:
    """A root filesystem with Python, for whatever boundary."""
    with unpacked_root() as unpacked:
        yield unpacked
