"""An address is one gate's: a second one, or another program there, is refused before any worker starts."""

import os
import socket

import pytest

from tests.lab.sockets import free_port
from tidegate.errors import ConfigError
from tidegate.runtime import address_claim
from tidegate.runtime.address_claim import address_holder, claim_addresses
from tidegate.runtime.listener import listen


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_second_claim_of_an_address_is_refused_and_names_it(host: str) -> None:
    address = (host, free_port())
    [held] = claim_addresses([("listen.http", address)])
    with held, listen(address):
        with pytest.raises(ConfigError, match=rf"another gate has .*:{address[1]} already, as pid {os.getpid()}"):
            claim_addresses([("listen.http", address)])
        assert address_holder(address) == (os.getpid(), os.geteuid())
    assert address_holder(address) is None
    for sock in claim_addresses([("listen.http", address)]):
        sock.close()


def test_what_shares_its_port_without_a_claim_is_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address_claim, "_PATIENCE_SECONDS", 0.0)
    address = ("127.0.0.1", free_port())
    with listen(address), pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{address[1]}"):
        claim_addresses([("listen.http", address)])
    assert address_holder(address) is None, "what was refused must hold nothing"


def test_workers_can_listen_under_the_claim_and_at_once_after_connections_were_there() -> None:
    address = ("127.0.0.1", free_port())
    with listen(address) as sock, socket.create_connection(address):
        sock.setblocking(True)
        sock.accept()[0].close()
    for held in claim_addresses([("listen.http", address)]):
        with held, listen(address), listen(address):
            pass


def test_an_address_that_this_machine_lacks_is_told_as_such() -> None:
    with pytest.raises(ConfigError) as refused:
        claim_addresses([("listen.dns", ("192.0.2.1", free_port()))])
    assert "Cannot assign requested address" in str(refused.value)
    assert "this machine has no such address" in refused.value.hint


def test_a_claim_that_does_not_tell_holds_all_the_same() -> None:
    address = ("127.0.0.1", free_port())
    held = claim_addresses([("listen.http", address)], tell=False)
    assert address_holder(address) is None, "nobody is answered"
    with pytest.raises(ConfigError, match="another gate has"):
        claim_addresses([("listen.http", address)])
    for sock in held:
        sock.close()
