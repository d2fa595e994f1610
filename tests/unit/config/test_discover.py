from collections.abc import Sequence
from pathlib import Path

import pytest

from tidegate.config.discover import CLIENTS, Found, Machine, discover, run_client
from tidegate.errors import ConfigError


def machine(home: Path, answers: dict[str, str] | None = None, **environ: str) -> Machine:
    def run(argv: Sequence[str]) -> str | None:
        return (answers or {}).get(" ".join(argv))

    return Machine(run=run, environ=environ, home=home)


HELP = "  -i, --index-url <url>   Base URL of the index (default https://default.test/simple). This should point\n"
PIP = "pip config list"


@pytest.mark.parametrize(
    ("client", "answers", "found"),
    [
        (
            "pip",
            {PIP: "global.index-url='https://index.test/simple'\ninstall.extra-index-url='https://a.test\\nhttps://b.test'"},
            ["https://index.test/simple", "https://a.test", "https://b.test"],
        ),
        ("pip", {PIP: ":env:.index-url='https://index.test'\n:env:.find-links='/opt/wheels'"}, ["https://index.test"]),
        ("pip", {PIP: "global.timeout='60'", "pip download --help": HELP}, ["https://default.test/simple"]),
        (
            "npm",
            {
                "npm config get registry": "https://npm.test/\n",
                "npm config list --json": '{"@acme:registry": "https://acme.test/", "registry": "", "x": 1}',
            },
            ["https://npm.test/", "https://acme.test/"],
        ),
        (
            "apt",
            {"apt-get indextargets --format $(REPO_URI)": "http://deb.test/d/\nhttp://deb.test/d/\nfile:/srv/d/\n"},
            ["http://deb.test/d/"],
        ),
        ("go", {"go env GOPROXY GOSUMDB": "https://go.test|https://b.test,direct\nsum.test\n"},
         ["https://go.test", "https://b.test", "https://sum.test"]),
        ("go", {"go env GOPROXY GOSUMDB": "https://go.test\nsum.test+key https://sums.go.test\n"},
         ["https://go.test", "https://sums.go.test"]),
        ("go", {"go env GOPROXY GOSUMDB": "https://go.test\noff\n"}, ["https://go.test"]),
    ],
)  # fmt: skip
def test_finds_what_the_client_is_configured_for(
    tmp_path: Path, client: str, answers: dict[str, str], found: list[str]
) -> None:
    assert [index.url for index in discover(client, machine(tmp_path, answers), registries={})] == found


def test_reads_cargo_and_maven_from_the_operators_own_files(tmp_path: Path) -> None:
    (tmp_path / ".cargo").mkdir()
    (tmp_path / ".cargo" / "config.toml").write_text(
        '[source.crates-io]\nreplace-with = "mirror"\n[source.mirror]\nregistry = "sparse+https://crates.test/index/"\n'
        '[registries.own]\nindex = "sparse+https://own.test/"\n[registries.git]\nindex = "ssh://git@own.test/x"\n'
    )
    (tmp_path / ".m2").mkdir()
    (tmp_path / ".m2" / "settings.xml").write_text(
        '<settings xmlns="urn:x"><mirrors><mirror><url> https://mvn.test/m2 </url></mirror></mirrors></settings>'
    )
    here = machine(tmp_path, CARGO_REGISTRIES_THIRD_INDEX="sparse+https://third.test/")
    cargo = [index.url for index in discover("cargo", here, registries={})]
    assert cargo == ["https://crates.test/index/", "https://own.test/", "https://third.test/"]
    assert [index.url for index in discover("maven", here, registries={})] == ["https://mvn.test/m2"]


@pytest.mark.parametrize("client", CLIENTS)
def test_says_what_to_do_when_nothing_is_configured(tmp_path: Path, client: str) -> None:
    with pytest.raises(ConfigError) as caught:
        discover(client, machine(tmp_path), registries={})
    assert f"registries: {{{client}:" in caught.value.hint


def test_the_configuration_stands_in_for_the_client(tmp_path: Path) -> None:
    found = discover("npm", machine(tmp_path), registries={"npm": "https://mirror.test/npm"})
    assert found == [Found("https://mirror.test/npm", "registries.npm")]


def test_a_password_in_the_url_goes_no_further(tmp_path: Path) -> None:
    here = machine(tmp_path, {PIP: "global.index-url='https://user:geheim@index.test/simple'"})
    found = discover("pip", here, registries={})
    assert found[0].url == "https://index.test/simple"
    assert "geheim" not in repr(found)


def test_a_client_runs_outside_of_any_workspace() -> None:
    # What a sandbox can write into a workspace (.npmrc, pip.conf, go.work) must not choose the hosts.
    assert run_client(["pwd"], environ={"PATH": "/bin:/usr/bin"}) == "/\n"


@pytest.mark.parametrize("argv", [["/no/such/program"], ["false"]])
def test_a_client_that_is_not_there_or_fails_says_nothing(argv: list[str]) -> None:
    assert run_client(argv, environ={"PATH": "/bin:/usr/bin"}) is None
