"""Who comes by a door is its session, whatever address it has and whatever it says."""

from pathlib import Path

from tests.unit.exchange.stage import OWN, SESSION, stage
from tidegate.exchange.channel import Channel
from tidegate.exchange.door import Door
from tidegate.exchange.head import RequestHead
from tidegate.policy.reasons import Reason

PEER = ("10.77.0.2", 40000)


def head(*headers: tuple[bytes, bytes]) -> RequestHead:
    return RequestHead("CONNECT", b"api.test:443", 1, list(headers), 0, None)


async def test_the_keeper_is_shown_the_doors_token_and_not_the_address(tmp_path: Path) -> None:
    made = stage(tmp_path)
    channel = Channel(made.gate, PEER, OWN, Door(SESSION, "own", "http"))
    assert await channel.identify(head()) is None
    assert made.keeper.asked == [("open", "own", f"door:{SESSION}", "door:http")]
    assert await channel.identify(head()) is None
    assert len(made.keeper.asked) == 1


async def test_a_token_shown_at_a_door_is_asked_about_as_shown_there(tmp_path: Path) -> None:
    made = stage(tmp_path)
    door = Door(SESSION, "own", "http")
    assert await Channel(made.gate, PEER, OWN, door).identify(head()) is None
    made.keeper.opens = Reason.SESSION_INVALID
    channel = Channel(made.gate, PEER, OWN, door)
    shown = (b"Proxy-Authorization", b"Basic czphbGllbg==")  # s:alien
    assert await channel.identify(head(shown)) is Reason.SESSION_INVALID
    assert made.keeper.asked[-1] == ("open", "alien", f"door:{SESSION}", "door:http")
    assert channel.subject.session == SESSION  # whose door it was stays on record


async def test_two_doors_of_one_address_are_two_peers(tmp_path: Path) -> None:
    made = stage(tmp_path)
    one, two = (Channel(made.gate, PEER, OWN, Door(sid, sid, "http")) for sid in (SESSION, type(SESSION)("other")))
    assert one.source != two.source


async def test_a_refusal_before_a_request_names_the_doors_session(tmp_path: Path) -> None:
    made = stage(tmp_path)
    door = Door(SESSION, "own", "http")
    assert await Channel(made.gate, PEER, OWN, door).identify(head()) is None
    later = Channel(made.gate, ("unix", 0), ("127.0.0.1", 0), door)
    later.refuse(Reason.NOT_HTTP)
    later.close()
    first, last = made.records("conn")[-2:]
    assert (first["session"], last["session"]) == (SESSION, SESSION)
    assert first["conn"]["client"] == "unix"  # type: ignore[index]
