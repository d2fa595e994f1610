"""The framed link: requests, answers, refusals, notices, and peers that break the framing."""

import asyncio
import socket
import struct

import pytest

from tidegate.errors import KeeperError
from tidegate.runtime import control
from tidegate.runtime.control import ControlLink, Fields, LinkError


def links(**right: object) -> tuple[ControlLink, ControlLink]:
    one, two = socket.socketpair()
    return ControlLink(one, peer="right"), ControlLink(two, peer="left", **right)  # type: ignore[arg-type]


async def test_a_request_gets_its_own_answer() -> None:
    async def double(fields: Fields) -> Fields:
        await asyncio.sleep(0)
        return {"value": 2 * int(str(fields["number"]))}

    left, right = links(handlers={"double": double})
    async with left, right:
        answers = await asyncio.gather(*(left.call("double", number=number) for number in range(20)))
    assert [answer["value"] for answer in answers] == [2 * number for number in range(20)]


async def test_a_slow_request_does_not_hold_up_the_next() -> None:
    release = asyncio.Event()

    async def slow(_: Fields) -> Fields:
        await release.wait()
        return {}

    async def fast(_: Fields) -> Fields:
        release.set()
        return {}

    left, right = links(handlers={"slow": slow, "fast": fast})
    async with left, right, asyncio.TaskGroup() as group:
        group.create_task(left.call("slow"))
        await asyncio.sleep(0)
        group.create_task(left.call("fast"))


async def _refuse(_: Fields) -> Fields:
    raise KeeperError("not now", hint="wait")


async def _break(_: Fields) -> Fields:
    raise ZeroDivisionError("with a secret in it")


@pytest.mark.parametrize(
    ("method", "said"),
    [
        pytest.param("refuse", "not now (wait)", id="a refusal in the peer's words"),
        pytest.param("break", "internal fault: ZeroDivisionError", id="a defect by its kind alone"),
        pytest.param("unheard", "unknown method", id="a method that is not there"),
    ],
)
async def test_a_refusal_reaches_the_asker_and_the_link_lives(method: str, said: str) -> None:
    async def fine(_: Fields) -> Fields:
        return {"fine": True}

    left, right = links(handlers={"refuse": _refuse, "break": _break, "fine": fine})
    async with left, right:
        with pytest.raises(LinkError) as caught:
            await left.call(method)
        assert said in str(caught.value)
        assert "secret" not in str(caught.value)
        assert await left.call("fine") == {"fine": True}


async def test_a_peer_that_does_not_answer_is_given_up() -> None:
    async def never(_: Fields) -> Fields:
        await asyncio.Event().wait()
        return {}

    left, right = links(handlers={"never": never})
    async with left, right:
        with pytest.raises(LinkError, match=r"within 0\.05 s"):
            await left.call("never", timeout=0.05)


async def test_whoever_waits_for_a_peer_that_leaves_is_told_at_once() -> None:
    begun = asyncio.Event()

    async def never(_: Fields) -> Fields:
        begun.set()
        await asyncio.Event().wait()
        return {}

    left, right = links(handlers={"never": never})
    async with left:
        async with right:
            waiting = asyncio.get_running_loop().create_task(left.call("never"))
            await begun.wait()
        with pytest.raises(LinkError, match="gone"):
            await waiting
        assert left.closed.is_set()
        with pytest.raises(LinkError, match="not there"):
            await left.call("never")


async def test_whoever_waits_is_told_even_while_we_still_work_for_the_peer_that_left() -> None:
    release, begun = asyncio.Event(), asyncio.Event()

    async def long_work(_: Fields) -> Fields:
        begun.set()
        await release.wait()
        return {}

    ours, theirs = socket.socketpair()
    async with ControlLink(ours, peer="the peer", handlers={"work": long_work}) as link:
        theirs.sendall(control.encode({"id": 1, "method": "work"}))
        await begun.wait()
        loop = asyncio.get_running_loop()
        waiting = loop.create_task(link.call("anything", timeout=30))
        theirs.setblocking(False)
        assert b"anything" in await loop.sock_recv(theirs, 4096)
        theirs.close()
        with pytest.raises(LinkError, match="gone"):
            await asyncio.wait_for(waiting, 2)
        release.set()


async def test_a_notice_arrives_whole_and_in_order() -> None:
    heard: list[Fields] = []
    done = asyncio.Event()

    def on_push(fields: Fields) -> None:
        heard.append(fields)
        if fields["push"] == "last":
            done.set()

    left, right = links(on_push=on_push)
    async with left, right:
        left.push("first", settings=b"\0" * 300_000)
        left.push("last")
        await asyncio.wait_for(done.wait(), 5)
    assert [fields["push"] for fields in heard] == ["first", "last"]
    assert heard[0]["settings"] == b"\0" * 300_000


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(struct.pack(">I", control.FRAME_LIMIT + 1), id="a length over the limit"),
        pytest.param(struct.pack(">I", 3) + b"\xc1\xc1\xc1", id="no msgpack"),
        pytest.param(struct.pack(">I", 1) + b"\x01", id="no map"),
    ],
)
async def test_a_peer_that_breaks_the_framing_counts_as_gone(sent: bytes) -> None:
    ours, theirs = socket.socketpair()
    async with ControlLink(ours, peer="the peer") as link:
        theirs.sendall(sent)
        await asyncio.wait_for(link.closed.wait(), 5)
    theirs.close()


def test_blocking_ends_speak_the_same_frames() -> None:
    one, two = socket.socketpair()
    with one, two:
        control.send(one, {"push": "start", "settings": b"\0\1"})
        assert control.receive(two) == {"push": "start", "settings": b"\0\1"}
        one.close()
        assert control.receive(two) is None


def test_a_message_over_the_limit_is_not_sent() -> None:
    with pytest.raises(LinkError, match="over the limit"):
        control.encode({"settings": bytes(control.FRAME_LIMIT)})
