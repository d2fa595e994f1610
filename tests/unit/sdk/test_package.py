"""`import tidegate.sdk`: everything is there, and little of it is loaded."""

import subprocess
import sys

import pytest

import tidegate.sdk

HEAVY = [
    "mitmproxy", "msgspec", "cryptography", "aiohttp", "asyncio", "dns", "ssl", "yaml", "re2", "netaddr", "pytest",
    "jwt", "h2", "click",
]  # fmt: skip


def _loaded(statement: str) -> set[str]:
    code = f"{statement}\nimport sys; print(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_package_loads_nothing_heavy() -> None:
    assert not _loaded("import tidegate.sdk") & set(HEAVY)


@pytest.mark.parametrize("name", ["Sandbox", "AsyncSandbox", "Session", "AsyncSession", "UrlPolicy"])
def test_what_does_things_loads_nothing_of_the_gate(name: str) -> None:
    gate = {"mitmproxy", "cryptography", "aiohttp", "dns", "jwt", "h2", "click", "tidegate_addons"}
    assert not _loaded(f"from tidegate.sdk import {name}") & gate


@pytest.mark.parametrize("name", tidegate.sdk.__all__)
def test_every_public_name_is_there_and_says_what_it_is(name: str) -> None:
    assert getattr(tidegate.sdk, name).__doc__


def test_a_name_that_is_none_is_an_error_of_pythons_own() -> None:
    with pytest.raises(AttributeError, match="Sandpit"):
        tidegate.sdk.Sandpit  # noqa: B018
