"""Which hosts git is given a placeholder for."""

import pytest

from tidegate.credentials.spec import CredentialSpec, Place, PlaceholderSpec, Scope
from tidegate.keeper.gitaccess import git_credentials
from tidegate.policy.names import HostName

HOST, OTHER = HostName("api.allowed.test"), HostName("git.test")
SCOPES = (Scope(HOST), Scope(HOST, ("GET",)), Scope(OTHER))


def _spec(place: Place, env: str = "TOKEN") -> CredentialSpec:
    return CredentialSpec("c", SCOPES, place, PlaceholderSpec(env=env))


@pytest.mark.parametrize(
    ("user", "told"),
    [pytest.param("x-access-token", "x-access-token", id="named"), pytest.param("", "git", id="the client's own")],
)
def test_each_host_of_a_basic_password_is_told_once(user: str, told: str) -> None:
    found = git_credentials([_spec(Place("basic", user=user))], {"TOKEN": "placeholder"})
    assert found == [(HOST, told, "TOKEN"), (OTHER, told, "TOKEN")]


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(_spec(Place("header")), id="no Basic"),
        pytest.param(_spec(Place("basic", user="{secret}", password="x")), id="the secret as the user"),
        pytest.param(_spec(Place("basic"), env=""), id="no variable"),
        pytest.param(_spec(Place("basic"), env="OTHER"), id="another session's"),
    ],
)
def test_git_is_told_of_nothing_else(spec: CredentialSpec) -> None:
    assert git_credentials([spec], {"TOKEN": "placeholder"}) == []
