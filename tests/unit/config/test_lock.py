from collections.abc import Sequence
from pathlib import Path

import pytest

from tidegate.config.discover import Machine
from tidegate.config.form import FileForm, LockForm, PolicyForm, UseForm
from tidegate.config.lock import Fetched, LockResult, Vetted, Wanted, make_lock, wanted
from tidegate.config.lockfile import read_lock, write_lock
from tidegate.config.problem import ConfigErrors
from tidegate.errors import ResolveError
from tidegate.policy.names import Authority

PIP_PAGE = """<!DOCTYPE html><body>
<a href="../../packages/six-1.tar.gz#sha256=00">six-1</a>
<a href="https://files.test/packages/six-2.whl">six-2</a>
<a href="http://clear.test/packages/six-2.whl">six-2</a>
"""


class Web:
    """An index of the test's own: pages by URL, special addresses by host."""

    def __init__(self, pages: dict[str, str], special: dict[str, str] | None = None, gone: Sequence[str] = ()) -> None:
        self.pages = pages
        self.special = special or {}
        self.gone = gone
        self.asked: list[str] = []
        self.vetted: list[str] = []

    async def fetch(self, url: str, networks: tuple[str, ...]) -> Fetched:
        self.asked.append(url)
        if url not in self.pages:
            raise ResolveError("answered 404")
        return Fetched((url,), self.pages[url])

    async def vet(self, authority: Authority, networks: tuple[str, ...]) -> Vetted:
        self.vetted.append(str(authority.host))
        network = self.special.get(str(authority.host))
        if str(authority.host) in self.gone:
            return Vetted("does not resolve here")
        if network is not None and network not in networks:
            return Vetted(f"resolves to {network}: not public", (network,))
        return Vetted()


async def lock(web: Web, answers: dict[str, str], client: str = "pip", addresses: tuple[str, ...] = ()) -> LockResult:
    machine = Machine(run=lambda argv: answers.get(" ".join(argv)), environ={}, home=Path("/nowhere"))
    want = Wanted(client, client, addresses)
    return await make_lock([want], FileForm(version=1), machine, fetch=web.fetch, vet=web.vet)


PIP = {"pip config list": "global.index-url='https://index.test/simple'"}


async def test_the_hosts_of_the_files_are_asked_of_the_index() -> None:
    web = Web({"https://index.test/simple/six/": PIP_PAGE})
    result = await lock(web, PIP)
    assert result.problems == ()
    hosts = {str(host.host): (host.protocol, host.port) for host in result.hosts["pip"]}
    assert hosts == {"index.test": ("https", 443), "files.test": ("https", 443)}
    assert "files.test" in result.notes[0]
    assert web.asked == ["https://index.test/simple/six/"]


@pytest.mark.parametrize(
    ("client", "answers", "question", "page"),
    [
        (
            "npm",
            {"npm config get registry": "https://index.test/"},
            "https://index.test/once",
            '{"versions": {"1.0.0": {"dist": {"tarball": "https://files.test/once.tgz"}}}}',
        ),
    ],
)
async def test_other_indexes_say_it_in_their_own_form(
    client: str, answers: dict[str, str], question: str, page: str
) -> None:
    result = await lock(Web({question: page}), answers, client)
    assert {str(host.host) for host in result.hosts[client]} == {"index.test", "files.test"}


async def test_an_index_without_that_page_is_locked_alone_and_said_so() -> None:
    result = await lock(Web({}), PIP)
    assert [str(host.host) for host in result.hosts["pip"]] == ["index.test"]
    assert "answered 404; only the index itself is locked" in result.notes[0]


@pytest.mark.parametrize("page", ["", "<a href='http://[::1'>x</a>", "\x00\xff<a href", "<a href='//'>"])
async def test_a_page_without_sense_locks_nothing_more(page: str) -> None:
    result = await lock(Web({"https://index.test/simple/six/": page}), PIP)
    assert [str(host.host) for host in result.hosts["pip"]] == ["index.test"]


@pytest.mark.parametrize("page", ["[]", "{", '{"versions": 3}', '{"versions": {"1": {"dist": 4}}}', "null"])
async def test_a_record_without_sense_locks_nothing_more(page: str) -> None:
    answers = {"npm config get registry": "https://index.test/"}
    result = await lock(Web({"https://index.test/once": page}), answers, "npm")
    assert [str(host.host) for host in result.hosts["npm"]] == ["index.test"]


async def test_a_special_address_fails_and_prints_the_line_to_add() -> None:
    web = Web({"https://index.test/simple/six/": PIP_PAGE}, {"index.test": "10.1.2.3/32"})
    result = await lock(web, PIP)
    assert "index.test (pip config list: global.index-url) resolves to 10.1.2.3/32: not public" in result.problems[0]
    assert "use: [{preset: pip, addresses: [10.1.2.3/32]}]" in result.problems[1]
    assert web.asked == [], "an index that may not be reached was asked"


async def test_a_special_address_of_the_file_host_is_added_to_those_given() -> None:
    pages = {"https://index.test/simple/six/": PIP_PAGE}
    web = Web(pages, {"index.test": "10.1.2.3/32", "files.test": "10.1.2.4/32"})
    result = await lock(web, PIP, addresses=("10.1.2.3/32",))
    assert "use: [{preset: pip, addresses: [10.1.2.3/32, 10.1.2.4/32]}]" in result.problems[-1]
    result = await lock(web, PIP, addresses=("10.1.2.3/32", "10.1.2.4/32"))
    assert result.problems == ()


async def test_a_host_that_does_not_resolve_fails_unless_the_client_works_without() -> None:
    answers = {"go env GOPROXY GOSUMDB": "https://index.test\nsum.test\n"}
    result = await lock(Web({}, gone=["sum.test"]), answers, "go")
    assert [str(host.host) for host in result.hosts["go"]] == ["index.test"]
    assert "left out" in result.notes[0]
    assert (await lock(Web({}, gone=["index.test"]), answers, "go")).problems


async def test_a_client_without_an_index_is_a_problem() -> None:
    assert "registries: {pip:" in (await lock(Web({}), {})).problems[0]


def test_what_is_wanted_is_what_the_policies_use() -> None:
    policies = {
        "a": PolicyForm(use=("anthropic", UseForm(preset="pip", addresses=("10.0.0.1/32",)))),
        "b": PolicyForm(use=("npm", UseForm(preset="pip", addresses=("10.0.0.2/32",)))),
    }
    assert wanted(policies) == [Wanted("npm", "npm", ()), Wanted("pip", "pip", ("10.0.0.1/32", "10.0.0.2/32"))]


async def test_the_lock_is_read_as_it_was_written(tmp_path: Path) -> None:
    result = await lock(Web({"https://index.test/simple/six/": PIP_PAGE}), PIP)
    text = write_lock(result.hosts)
    (tmp_path / "tidegate.lock").write_text(text)
    read = read_lock(tmp_path / "tidegate.lock")
    assert read is not None
    assert write_lock(read.hosts) == text


def test_an_empty_lock_is_a_lock(tmp_path: Path) -> None:
    (tmp_path / "l").write_text(write_lock({}))
    assert read_lock(tmp_path / "l") == LockForm(version=1)
    assert read_lock(tmp_path / "none") is None


@pytest.mark.parametrize(
    "line",
    [
        '{host: "*.test"}',
        "{host: index.test, methods: [PUT]}",
        "{host: index.test, protocol: tcp}",
        "{host: index.test, port: 0}",
        "{host: 'a b'}",
    ],
)
def test_X_06_a_lock_can_say_nothing_but_one_host(tmp_path: Path, line: str) -> None:
    (tmp_path / "l").write_text(f"version: 1\nhosts: {{pip: [{line}]}}\n")
    with pytest.raises(ConfigErrors):
        read_lock(tmp_path / "l")
