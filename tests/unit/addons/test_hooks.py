"""The worker's add-ons: they carry a flow to its exchange and the effect back, and decide nothing."""

import asyncio
from pathlib import Path

import pytest
from mitmproxy import http
from mitmproxy.connection import Client
from mitmproxy.test import tflow

from tests.unit.exchange.stage import PLACEHOLDER, SECRET, FakeKeeper, connect, head, reply, stage, tunnel
from tidegate.exchange.effects import Forward, Relay
from tidegate.exchange.exchange import Exchange
from tidegate.exchange.tunnel import Tunnel
from tidegate.keeper.protocol import LeaseGrant
from tidegate.policy.reasons import Reason
from tidegate.session.identity import SessionId
from tidegate_addons.admission import Admission
from tidegate_addons.channels import Channels
from tidegate_addons.record import Record
from tidegate_addons.scrub import Scrub
from tidegate_addons.verdict import Verdict, exchange_of

GET = ("GET /a?b HTTP/1.1", "Host: api.test")


async def flow_of(folder: Path, *fields: str, keeper: FakeKeeper | None = None) -> tuple[http.HTTPFlow, Exchange]:
    channel = await tunnel(stage(folder, keeper=keeper))
    flow = tflow.tflow()
    exchange = flow.metadata["tidegate.exchange"] = Exchange(channel, head(*GET, *fields))
    return flow, exchange


def client() -> Client:
    return Client(peername=("10.0.0.2", 1), sockname=("10.9.9.1", 8080))


def test_channels_belong_to_their_clients(tmp_path: Path) -> None:
    channels, made, one = Channels(), stage(tmp_path), client()
    channel = made.channel()
    channels.add(one, channel)
    assert channels.of(one) is channel
    assert list(channels) == [channel]
    assert len(channels) == 1
    with pytest.raises(KeyError):
        channels.of(client())
    channels.drop(one)
    channels.drop(one)
    with pytest.raises(KeyError):
        channels.of(one)


async def test_connect_is_judged_in_the_same_turn_when_nothing_waits(tmp_path: Path) -> None:
    channels, made = Channels(), stage(tmp_path)
    flow, channel = tflow.tflow(), made.channel()
    channels.add(flow.client_conn, channel)
    flow.metadata["tidegate.head"] = connect("api.test:443")
    assert Admission(channels).http_connect(flow) is None
    assert channel.outcome == Tunnel()


async def test_a_connect_without_a_head_raises(tmp_path: Path) -> None:
    channels, made = Channels(), stage(tmp_path)
    flow = tflow.tflow()
    channels.add(flow.client_conn, made.channel())
    flow.metadata["tidegate.head"] = "GET / HTTP/1.1"
    with pytest.raises(TypeError):
        Admission(channels).http_connect(flow)


async def test_an_engine_of_our_own_takes_the_effect_from_the_exchange(tmp_path: Path) -> None:
    flow, exchange = await flow_of(tmp_path)
    before = flow.request.copy()
    assert Verdict().requestheaders(flow) is None
    assert isinstance(exchange.effect, Forward)
    assert flow.request.data.path == before.data.path


async def test_what_is_denied_leaves_the_flow_alone(tmp_path: Path) -> None:
    flow, exchange = await flow_of(tmp_path, f"X: {PLACEHOLDER}")
    before = flow.request.copy()
    assert Verdict().requestheaders(flow) is None
    assert not isinstance(exchange.effect, Forward)
    assert flow.request.data.headers == before.data.headers
    assert flow.request.data.path == before.data.path


async def test_P_35_what_the_judging_raises_comes_out_now_or_later(tmp_path: Path) -> None:
    class Broken(FakeKeeper):
        async def lease(self, session: SessionId, credential: str) -> LeaseGrant | Reason:
            await asyncio.sleep(0)
            raise OSError

    flow, exchange = await flow_of(tmp_path, f"Authorization: Bearer {PLACEHOLDER}", keeper=Broken())
    waiting = Verdict().requestheaders(flow)
    assert waiting is not None
    with pytest.raises(OSError):  # noqa: PT011 - the keeper's own
        await waiting
    assert exchange.effect is None
    assert SECRET.decode() not in str(flow.request.headers)


@pytest.mark.parametrize("hook", [Verdict().requestheaders, Scrub().responseheaders, Record().response])
async def test_a_flow_without_an_exchange_raises(hook) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(TypeError):
        hook(tflow.tflow())
    with pytest.raises(TypeError):
        exchange_of(tflow.tflow())


async def test_responses_are_judged_and_ends_recorded(tmp_path: Path) -> None:
    flow, exchange = await flow_of(tmp_path)
    Verdict().requestheaders(flow)
    exchange.on_response(reply("HTTP/1.1 200 OK", "Content-Length: 0"))
    Scrub().responseheaders(flow)
    assert isinstance(exchange.response_effect, Relay)
    Record().response(flow)
    Record().error(flow)
    Record().error(tflow.tflow())
    assert exchange not in exchange.channel.exchanges
