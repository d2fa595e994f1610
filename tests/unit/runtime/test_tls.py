"""TLS on the client's leg, in memory, with Python's own client; and the upstream's contexts."""

import ssl
from pathlib import Path

import pytest
from OpenSSL import SSL

from tests.unit.exchange.stage import Stage, stage
from tests.unit.runtime.play import NoSigner, Play
from tests.unit.runtime.test_entry import ESTABLISHED, connect
from tidegate.ca.authority import Authority
from tidegate.ca.leaf import sign_leaf
from tidegate.clock import SYSTEM
from tidegate.config.model import UpstreamSettings
from tidegate.errors import ConfigError
from tidegate.policy.names import HostName
from tidegate.policy.reasons import Reason
from tidegate.runtime.tls import Contexts, upstream_context
from tidegate.session.identity import SessionId


class Signer:
    """A keeper that certifies; keeps for what."""

    def __init__(self) -> None:
        self.authority = Authority.make(SYSTEM)
        self.asked: list[tuple[str, bool]] = []

    async def sign_leaf(
        self, session: SessionId, name: HostName, public_key_der: bytes, *, denied: bool
    ) -> tuple[bytes, ...] | Reason:
        del session
        self.asked.append((name, denied))
        return sign_leaf(self.authority, name, public_key_der, SYSTEM)


class Sandbox:
    """A client behind the gate: CONNECT, then TLS in memory."""

    def __init__(self, made: Stage, signer: Signer, *, alpn: tuple[str, ...] = ("http/1.1",)) -> None:
        self.play = Play(made, contexts=Contexts(signer, UpstreamSettings()))
        self.context = ssl.create_default_context(cadata=signer.authority.pem())
        self.context.set_alpn_protocols(list(alpn))
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()

    async def open(self, authority: str, name: str) -> ssl.SSLObject:
        """CONNECT and shake hands under `name`."""
        assert await self.play.client(connect(authority)) == ESTABLISHED
        self.tls = self.context.wrap_bio(self._in, self._out, server_hostname=name)
        for _ in range(5):
            try:
                self.tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._in.write(await self.play.client(self._out.read()))
        return self.tls

    async def say(self, data: bytes) -> bytes:
        self.tls.write(data)
        self._in.write(await self.play.client(self._out.read()))
        try:
            return self.tls.read(1 << 20)
        except ssl.SSLWantReadError:
            return b""


async def test_a_denied_name_is_told_in_a_tls_that_verifies(tmp_path: Path) -> None:
    signer = Signer()
    sandbox = Sandbox(stage(tmp_path), signer)
    tls = await sandbox.open("evil.test:443", "evil.test")
    assert tls.getpeercert()["subjectAltName"] == (("DNS", "evil.test"),)  # type: ignore[index]
    assert tls.selected_alpn_protocol() == "http/1.1"
    told = await sandbox.say(b"GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n")
    assert told.startswith(b"HTTP/1.1 403 ")
    assert b'"reason":"not_in_allowlist"' in told
    assert signer.asked == [("evil.test", True)]
    assert sandbox.play.opened == []


async def test_P_02_a_server_name_that_differs_is_told_under_that_name(tmp_path: Path) -> None:
    signer = Signer()
    sandbox = Sandbox(stage(tmp_path), signer)
    await sandbox.open("api.test:443", "evil.test")
    told = await sandbox.say(b"GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n")
    assert told.startswith((b"HTTP/1.1 403 ", b"HTTP/1.1 421 "))
    assert signer.asked[-1] == ("evil.test", True)
    assert sandbox.play.opened == []


async def test_P_03_another_host_inside_is_told(tmp_path: Path) -> None:
    sandbox = Sandbox(stage(tmp_path), Signer())
    await sandbox.open("api.test:443", "api.test")
    told = await sandbox.say(b"GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n")
    assert told.startswith(b"HTTP/1.1 421 ")


async def test_an_allowed_request_opens_and_starts_tls_to_the_one_name(tmp_path: Path) -> None:
    sandbox = Sandbox(stage(tmp_path), Signer())
    await sandbox.open("api.test:443", "api.test")
    await sandbox.say(b"GET / HTTP/1.1\r\nHost: api.test\r\n\r\n")
    (server,) = sandbox.play.opened
    assert server.address == ("api.test", 443)
    assert sandbox.play.upstream.startswith(b"\x16\x03\x01")
    assert b"\x00\x08api.test" in sandbox.play.upstream


async def test_P_38_an_upstream_that_breaks_its_tls_is_told(tmp_path: Path) -> None:
    sandbox = Sandbox(stage(tmp_path), Signer())
    await sandbox.open("api.test:443", "api.test")
    await sandbox.say(b"GET / HTTP/1.1\r\nHost: api.test\r\n\r\n")
    sandbox._in.write(await sandbox.play.server(b"HTTP/1.1 400 this is no TLS\r\n\r\n"))
    told = sandbox.tls.read(1 << 20)
    assert told.startswith(b"HTTP/1.1 502 ")
    assert b'"reason":"upstream_tls"' in told


async def test_P_37_a_client_that_refuses_the_certificate_is_an_error_and_no_passthrough(tmp_path: Path) -> None:
    sandbox = Sandbox(stage(tmp_path), Signer())
    sandbox.context = ssl.create_default_context()
    with pytest.raises(ssl.SSLCertVerificationError):
        await sandbox.open("api.test:443", "api.test")
    await sandbox.play.client(sandbox._out.read())
    sandbox.play.channel.close()
    assert sandbox.play.closed
    assert sandbox.play.upstream == b""
    assert sandbox.play.stage.phases()[-1] == ("conn", "end", "error", "client_tls")


@pytest.mark.parametrize("raw", [b"\x16\x03\x01\x00\x05junk!", b"\x16\x03\x01\xff\xff", b"\x16GET / HTTP/1.1\r\n"])
async def test_what_is_no_hello_closes(tmp_path: Path, raw: bytes) -> None:
    play = Play(stage(tmp_path))
    await play.client(connect("api.test:443"))
    assert b"HTTP" not in await play.client(raw)
    assert play.closed


async def test_without_a_certificate_the_tls_fails(tmp_path: Path) -> None:
    sandbox = Sandbox(stage(tmp_path), Signer())
    sandbox.play.contexts._signer = NoSigner()
    tls = await sandbox.open("api.test:443", "api.test")
    assert tls.version() is None
    assert sandbox.play.closed


async def test_a_name_is_certified_once_a_session_and_forgotten_with_it(tmp_path: Path) -> None:
    signer = Signer()
    contexts = Contexts(signer, UpstreamSettings())
    alice, bob = SessionId("alice"), SessionId("bob")
    made = await contexts.certify(alice, "api.test", denied=False)
    assert isinstance(made, SSL.Context)
    assert contexts.leaf(alice, "api.test") is made
    assert contexts.leaf(bob, "api.test") is None
    contexts.forget(alice)
    assert contexts.leaf(alice, "api.test") is None


def test_a_trust_store_that_cannot_be_read_is_a_configuration_fault(tmp_path: Path) -> None:
    broken = tmp_path / "ca.pem"
    broken.write_text("no certificate")
    for settings in (UpstreamSettings(ca_file=str(broken)), UpstreamSettings(extra_ca_files=(str(tmp_path / "no"),))):
        with pytest.raises(ConfigError):
            upstream_context(settings)


def test_the_upstream_is_always_verified() -> None:
    assert upstream_context(UpstreamSettings()).get_verify_mode() == SSL.VERIFY_PEER
