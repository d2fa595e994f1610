"""What the opener of a session gets."""

import msgspec
import pytest

from tidegate.config.model import EnvSource, ListenSettings, Settings
from tidegate.credentials.spec import CredentialSpec, Place, PlaceholderSpec, Scope
from tidegate.errors import ConfigError
from tidegate.keeper.protocol import SessionOpened
from tidegate.policy.names import HostName
from tidegate.runtime.opened import check_proxy_host, opened_session, proxy_urls
from tidegate.secret import Secret
from tidegate.session.identity import SessionId


def _settings(host: str = "127.0.0.1", **more: object) -> Settings:
    plain = Settings(state_dir="/s", listen=ListenSettings(http=((host, 8080),)))
    return msgspec.structs.replace(plain, **more)


@pytest.mark.parametrize(
    ("bound", "host", "url"),
    [
        ("127.0.0.1", None, "http://s:T@127.0.0.1:8080"),
        ("10.0.0.1", None, "http://s:T@10.0.0.1:8080"),
        ("0.0.0.0", None, "http://s:T@127.0.0.1:8080"),
        ("::", None, "http://s:T@[::1]:8080"),
        ("fd00::1", None, "http://s:T@[fd00::1]:8080"),
        ("0.0.0.0", "tidegate", "http://s:T@tidegate:8080"),
        ("0.0.0.0", "fd00::2", "http://s:T@[fd00::2]:8080"),
    ],
)
def test_the_proxy_url_leads_to_the_listener(bound: str, host: str | None, url: str) -> None:
    assert proxy_urls(_settings(bound), "T", host) == (url,)


@pytest.mark.parametrize("host", [None, "tidegate", "my_gate.test", "10.0.0.1", "fd00::2"])
def test_a_host_alone_is_a_proxy_host(host: str | None) -> None:
    check_proxy_host(host)


@pytest.mark.parametrize("host", ["", "http://x", "x:8080", "[fd00::2]", "a b", "x/y", "u@x", "x\n"])
def test_anything_else_is_no_proxy_host(host: str) -> None:
    with pytest.raises(ConfigError, match="is no host"):
        check_proxy_host(host)


def test_without_a_listener_there_is_no_proxy_url() -> None:
    assert proxy_urls(_settings(listen=ListenSettings(http=())), "T") == ()


def test_each_listener_has_its_url() -> None:
    listen = ListenSettings(http=(("10.0.0.1", 1), ("fd00::1", 2)))
    assert proxy_urls(_settings(listen=listen), None) == ("http://10.0.0.1:1", "http://[fd00::1]:2")


def test_the_operators_variables_are_named_to_be_dropped_and_the_placeholders_own_is_not() -> None:
    settings = _settings(sources={"a": EnvSource("A_TOKEN"), "b": EnvSource("B_TOKEN")})
    opened = SessionOpened(SessionId("x"), Secret("T"), None, {"A_TOKEN": "placeholder"})
    session = opened_session(settings, opened)
    assert session.unset == ("A_TOKEN_FILE", "B_TOKEN", "B_TOKEN_FILE")
    assert session.env["A_TOKEN"] == "placeholder"


@pytest.mark.parametrize(
    ("place", "told"),
    [
        pytest.param(Place(kind="basic", user="x-access-token", password="{secret}"), True, id="basic"),
        pytest.param(Place(kind="basic", user="{secret}", password="x"), False, id="the secret as the user"),
        pytest.param(Place(kind="header", format="Bearer {secret}"), False, id="bearer"),
    ],
)
def test_git_is_told_of_hosts_that_are_bound_by_basic(place: Place, told: bool) -> None:
    spec = CredentialSpec(
        name="c",
        scope=(Scope(HostName("git.test")),),
        place=place,
        placeholder=PlaceholderSpec(env="GIT_TOKEN"),
    )
    opened = SessionOpened(SessionId("x"), Secret("T"), None, {"GIT_TOKEN": "placeholder"})
    env = opened_session(_settings(credentials={"c": spec}), opened).env
    assert any("git.test" in value for name, value in env.items() if name.startswith("GIT_CONFIG_KEY")) == told
