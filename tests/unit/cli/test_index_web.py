from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tidegate.cli.index_web import IndexWeb
from tidegate.config.model import ResolverSettings, UpstreamSettings
from tidegate.errors import ResolveError
from tidegate.policy.names import Authority, parse_authority

OURS = ("127.0.0.1/32",)


class Index:
    """A server on loopback that notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.server = TestServer(self._app(), host="127.0.0.1")

    def _app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        return app

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.path)
        port = self.server.port
        match request.path:
            case "/page":
                return web.Response(text="hello")
            case "/moved":
                return web.Response(status=301, headers={"Location": "/page"})
            case "/loop":
                return web.Response(status=302, headers={"Location": "/loop"})
            case "/inside":
                return web.Response(status=302, headers={"Location": f"http://127.0.0.2:{port}/page"})
            case "/metadata":
                return web.Response(status=302, headers={"Location": "http://169.254.169.254/latest/"})
            case "/file":
                return web.Response(status=302, headers={"Location": "file:///etc/passwd"})
            case "/huge":
                return web.Response(body=b"x" * (9 * 1024 * 1024))
        return web.Response(status=404)

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server.port}{path}"


@pytest.fixture
async def index() -> AsyncIterator[Index]:
    made = Index()
    await made.server.start_server()
    yield made
    await made.server.close()


@pytest.fixture
async def asker() -> AsyncIterator[IndexWeb]:
    async with IndexWeb(ResolverSettings(servers=("127.0.0.1:9",)), UpstreamSettings(), ()) as made:
        yield made


async def test_asks_what_the_user_allowed(index: Index, asker: IndexWeb) -> None:
    page = await asker.fetch(index.url("/page"), OURS)
    assert (page.text, page.urls) == ("hello", (index.url("/page"),))


async def test_follows_a_redirect_and_tells_both_hosts(index: Index, asker: IndexWeb) -> None:
    page = await asker.fetch(index.url("/moved"), OURS)
    assert page.urls == (index.url("/moved"), index.url("/page"))


async def test_invariant_3_a_special_address_is_not_asked_unless_allowed(index: Index, asker: IndexWeb) -> None:
    with pytest.raises(ResolveError, match="resolved_blocked"):
        await asker.fetch(index.url("/page"), ())
    assert index.asked == []


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/inside", "resolved_blocked"),
        ("/metadata", "resolved_metadata"),
        ("/file", "leads to file"),
        ("/loop", "too many redirects"),
        ("/huge", "more than"),
        ("/none", "answered 404"),
    ],
)
async def test_an_index_cannot_lead_elsewhere(index: Index, asker: IndexWeb, path: str, why: str) -> None:
    with pytest.raises(ResolveError, match=why):
        await asker.fetch(index.url(path), OURS)
    assert "/page" not in index.asked


async def test_a_proxy_of_the_environment_is_not_used(
    index: Index, asker: IndexWeb, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Through a proxy, the address that was vetted would not be the one that is dialled.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert (await asker.fetch(index.url("/page"), OURS)).text == "hello"


@pytest.mark.parametrize(
    ("authority", "networks", "problem", "special"),
    [
        ("10.9.8.7:443", (), "not public", ("10.9.8.7/32",)),
        ("10.9.8.7:443", ("10.0.0.0/8",), "", ()),
        ("[fd00::1]:443", (), "not public", ("fd00::1/128",)),
        ("169.254.169.254:80", ("0.0.0.0/0",), "metadata", ()),
        ("index.test:443", (), "does not resolve", ()),
    ],
)
async def test_vets_as_the_gate_will(
    asker: IndexWeb, authority: str, networks: tuple[str, ...], problem: str, special: tuple[str, ...]
) -> None:
    parsed = parse_authority(authority, default_port=None)
    assert isinstance(parsed, Authority)
    vetted = await asker.vet(parsed, networks)
    assert problem in vetted.problem
    assert bool(problem) == bool(vetted.problem)
    assert vetted.special == special
