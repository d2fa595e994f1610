"""A wall that is whole may be for another configuration: which one it was made for, and what is in force now."""

import msgspec
import pytest

from tidegate.config.model import ListenSettings, ResolverSettings, Settings
from tidegate.keeper.protocol import GATE_USER, USERS
from tidegate.runtime.wall_fit import leash_words, link_words, misfits, shared_words

LISTEN = ListenSettings(
    http=(("127.0.0.1", 8080),), tls=(("10.77.0.1", 443),), dns=(("10.77.0.1", 53), ("10.78.0.1", 53))
)
HERE = (("127.0.0.1", "lo"), ("10.77.0.1", "tg0"), ("10.78.0.1", "tg1"))
SETTINGS = Settings(state_dir="/s", listen=LISTEN, resolver=ResolverSettings(servers=("10.9.9.9:53",)))
MADE_FOR = {
    "tg0": link_words(LISTEN, {"10.77.0.1"}),
    GATE_USER: leash_words(SETTINGS),
    USERS: shared_words(LISTEN),
}


def test_words_are_of_what_stands_at_the_device() -> None:
    assert MADE_FOR["tg0"] == ("listen.dns 10.77.0.1:53", "listen.tls 10.77.0.1:443", "listen.tls 10.77.0.1:80")
    assert MADE_FOR[USERS] == ("listen.http 127.0.0.1:8080",)
    assert MADE_FOR[GATE_USER] == ("resolver 10.9.9.9:53",)


def test_what_the_site_has_closed_since_is_said() -> None:
    closed = msgspec.structs.replace(SETTINGS, deny_cidrs=("198.41.0.0/24",))
    [said] = misfits(closed, MADE_FOR, HERE)
    assert "deny_cidrs 198.41.0.0/24" in said
    assert said.endswith("tidegate wall gate, once more")


def test_what_was_made_for_the_configuration_in_force_fits() -> None:
    assert misfits(SETTINGS, MADE_FOR, HERE) == []


@pytest.mark.parametrize(
    ("change", "name", "command"),
    [
        pytest.param({"listen": ListenSettings(tls=LISTEN.tls, dns=(("10.77.0.1", 5353),))}, "tg0", "up", id="port"),
        pytest.param({"listen": ListenSettings(http=(("127.0.0.1", 8081),))}, USERS, "shared", id="loopback"),
        pytest.param({"resolver": ResolverSettings(servers=("10.9.9.9:54",))}, GATE_USER, "gate", id="resolver"),
    ],
)
def test_what_has_changed_since_is_named_with_what_to_do(change: dict[str, object], name: str, command: str) -> None:
    now = msgspec.structs.replace(SETTINGS, **change)
    told = [text for text in misfits(now, MADE_FOR, HERE) if text.startswith(f"wall: {name}:")]
    assert len(told) == 1
    assert told[0].endswith(f"tidegate wall {command}, once more")


def test_very_many_parts_are_told_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch says them each second, in a message of bounded length."""

    def asking(count: int) -> Settings:
        servers = tuple(f"10.0.{number // 250}.{number % 250}:53" for number in range(count))
        return msgspec.structs.replace(SETTINGS, resolver=ResolverSettings(servers=servers))

    few, many, more = (leash_words(asking(count)) for count in (5, 5000, 5001))
    assert len(few) == 5
    assert len(many) == len(more) == 1
    assert many != more
