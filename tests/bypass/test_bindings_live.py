"""An address that is bound to another session while a worker knows its clients."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.lab.certs import Authority
from tests.lab.client import RawClient, Refused
from tests.lab.dns import addresses, dns_server
from tests.lab.gate import Gate, configuration, gate, rule
from tests.lab.upstream import Upstream, upstream
from tests.lab.visitor import Visitor

NAME = "api.allowed.test"
BOX = {"policy": "default", "from": "127.0.7.1/32"}
ONE, TWO = "127.0.5.1", "127.0.5.2"

World = tuple[Gate, Upstream]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with (
        Authority() as ca,
        dns_server({NAME: addresses("127.0.0.1")}) as dns,
        upstream(ca=ca, names=(NAME,)) as server,
    ):
        config = configuration(allow=[rule(NAME, port=server.port)], dns=dns, ca=ca)
        with gate(config) as running:
            yield running, server


def visit(visitor: Visitor, server: Upstream, source: str, **more: Any) -> tuple[int, str | None]:
    """Make one request from an address; return status and reason, also of a refusal at CONNECT."""
    reply = visitor.get(server, source=source, **more)
    return reply.status, reply.reason


def gone(client: RawClient, server: Upstream) -> bool:
    """Tell whether a connection has been cut: a request on it has no answer."""
    with contextlib.suppress(OSError, EOFError):
        return client.request("GET", "/echo", host=f"{NAME}:{server.port}").status != 200
    return True


def test_a_token_stops_working_from_an_address_that_another_session_was_given(world: World) -> None:
    running, server = world
    alice = Visitor(running, running.session())
    with alice.tunnel(server, source=ONE) as open_before:
        assert open_before.request("GET", "/echo", host=f"{NAME}:{server.port}").status == 200
        assert visit(alice, server, ONE) == (200, None)
        bob = Visitor(running, running.session(source=f"{ONE}/32"))
        assert visit(alice, server, ONE) == (403, "session_invalid")
        assert gone(open_before, server)
    assert running.wait_audit(type="incident", session=alice.session.id)[0]["incident"]["name"] == "session_misplaced"
    assert visit(alice, server, TWO) == (200, None)  # the session itself goes on elsewhere
    assert visit(bob, server, ONE) == (200, None)
    assert visit(bob, server, ONE, token=None) == (200, None)
    assert bob.wait_log(lambda lines: len(lines) == 2, type="http", phase="end")


def test_the_narrowest_network_wins_at_once(world: World) -> None:
    running, server = world
    wide = Visitor(running, running.session(source="127.0.6.0/24"))
    assert visit(wide, server, "127.0.6.1", token=None) == (200, None)
    with wide.tunnel(server, source="127.0.6.2", token=None) as neighbour:
        narrow = Visitor(running, running.session(source="127.0.6.1/32"))
        assert visit(narrow, server, "127.0.6.1", token=None) == (200, None)
        assert narrow.wait_log(type="http", phase="end")
        assert len(wide.log(type="http", phase="end")) == 1
        assert not gone(neighbour, server)
    running.admin("DELETE", f"/v1/sessions/{narrow.session.id}")
    assert visit(wide, server, "127.0.6.1", token=None) == (200, None)


def test_a_reload_that_binds_an_address_counts_at_once(world: World) -> None:
    running, server = world
    alice = Visitor(running, running.session())
    assert visit(alice, server, "127.0.7.1") == (200, None)
    bound = {**yaml.safe_load(running.config_file.read_text()), "sessions": {"box": BOX}}
    assert running.reload(bound)[0] == 200
    assert visit(alice, server, "127.0.7.1") == (403, "session_invalid")


def test_a_client_without_a_token_is_nobody_where_nothing_is_bound(world: World) -> None:
    running, server = world
    with (
        pytest.raises(Refused) as refused,
        Visitor(running, running.session()).tunnel(server, source="127.0.8.1", token=None),
    ):
        pass
    assert refused.value.reply is not None
    assert refused.value.reply.status == 407
