"""The recipes of docs/recipes, run as a sandbox would run them, against a real gate."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.lab.certs import Authority
from tests.lab.dns import addresses, dns_server
from tests.lab.gate import ROOT, Gate, Session, configuration, gate, rule
from tests.lab.gitserver import git_backend, make_repository, run_git
from tests.lab.http import Reply, Request
from tests.lab.index import WHEEL, serve_index
from tests.lab.upstream import Connection, Upstream, upstream

RECIPES = ROOT / "docs" / "recipes"
API, CODE, INDEX = "api.partner.test", "git.code.test", "index.partner.test"
KEY = "sk-partner-4b1de5a0c7f84e61b0aa93d2"
TOKEN = "code-token-83a7d0be1c9f45268e7714ab"


async def me(_: Connection, request: Request) -> Reply:
    known = request.header("authorization") == f"Bearer {KEY}"
    return Reply(200, [], b"hello, acme\n") if known else Reply(401, [], b"who are you?\n")


@dataclass(frozen=True)
class Kitchen:
    gate: Gate
    session: Session
    api: Upstream
    repository: Path
    home: Path

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a recipe with the session's environment and nothing else of ours."""
        env = {"PATH": os.environ["PATH"], "HOME": str(self.home), **self.session.env, "GIT_CONFIG_NOSYSTEM": "1"}
        return subprocess.run(command, env=env, cwd=self.home, capture_output=True, text=True, timeout=60, check=False)

    def url(self, host: str, path: str) -> str:
        return f"https://{host}:{self.api.port}{path}"


@pytest.fixture(scope="module")
def kitchen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kitchen]:
    home = tmp_path_factory.mktemp("home")
    # requests itself, as pip brings it: no further package for one recipe.
    shim = "import sys\nfrom pip._vendor import requests\nsys.modules['requests'] = requests\n"
    (home / "requests.py").write_text(shim)
    with contextlib.ExitStack() as stack:
        ca = stack.enter_context(Authority())
        dns = stack.enter_context(dns_server({name: addresses("127.0.0.1") for name in (API, CODE, INDEX)}))
        api = stack.enter_context(upstream(ca=ca, names=(API, CODE, INDEX)))
        repository = make_repository(tmp_path_factory.mktemp("git"), "acme/demo.git", files=2)
        api.route("/me", me)
        api.route("/acme/**", git_backend(repository.parents[1], user="x-access-token", password=TOKEN))
        serve_index(api)
        config = configuration(
            allow=[
                rule(API, port=api.port, methods=["GET"], credential="partner"),
                rule(CODE, port=api.port, paths=["/acme/**"], credential="code"),
                rule(INDEX, port=api.port, methods=["GET", "HEAD"], paths=["/simple/**", "/files/**"]),
            ],
            dns=dns,
            ca=ca,
            credentials={
                "partner": {
                    "source": {"env": "LAB_KEY"},
                    "for": [{"host": API, "methods": ["GET"]}],
                    "place": {"header": "Authorization", "format": "Bearer {secret}"},
                    "placeholder": {"env": "PARTNER_KEY"},
                },
                "code": {
                    "source": {"env": "LAB_TOKEN"},
                    "for": [{"host": CODE, "paths": ["/acme/**"]}],
                    "place": {"basic": {"user": "x-access-token", "password": "{secret}"}},
                    "placeholder": {"env": "CODE_TOKEN"},
                },
            },
        )
        running = stack.enter_context(gate(config, env={"LAB_KEY": KEY, "LAB_TOKEN": TOKEN}))
        session = running.session(credentials=["partner", "code"])
        yield Kitchen(running, session, api, repository, home)


def test_curl(kitchen: Kitchen) -> None:
    done = kitchen.run("sh", str(RECIPES / "curl.sh"), kitchen.url(API, "/me"))
    assert (done.returncode, done.stdout) == (0, "hello, acme\n"), done.stderr


def test_curl_shows_the_denial_and_fails(kitchen: Kitchen) -> None:
    done = kitchen.run("sh", str(RECIPES / "curl.sh"), "https://evil.test/")
    assert done.returncode != 0
    assert "403" in done.stderr


def test_requests(kitchen: Kitchen) -> None:
    env_path = f"PYTHONPATH={kitchen.home}"
    done = kitchen.run("env", env_path, sys.executable, str(RECIPES / "requests_get.py"), kitchen.url(API, "/me"))
    assert (done.returncode, done.stdout) == (0, "hello, acme\n"), done.stderr


def test_requests_tells_a_denial(kitchen: Kitchen) -> None:
    url = kitchen.url("evil.test", "/")
    done = kitchen.run("env", f"PYTHONPATH={kitchen.home}", sys.executable, str(RECIPES / "requests_get.py"), url)
    assert done.returncode == 1
    assert "denied: not_in_allowlist" in done.stderr


@pytest.mark.skipif(shutil.which("node") is None, reason="no node on this machine")
def test_node(kitchen: Kitchen) -> None:
    done = kitchen.run("node", str(RECIPES / "node_get.mjs"), kitchen.url(API, "/me"))
    assert (done.returncode, done.stdout) == (0, "hello, acme\n"), done.stderr


def test_pip(kitchen: Kitchen) -> None:
    command = ("sh", str(RECIPES / "pip.sh"), kitchen.url(INDEX, "/simple"), "tidy-demo")
    done = kitchen.run("env", f"PATH={Path(sys.executable).parent}:{os.environ['PATH']}", *command)
    assert done.returncode == 0, done.stderr
    assert "tidy_demo.py" in done.stdout
    kitchen.gate.wait_audit(type="http", phase="end", session=kitchen.session.id)
    paths = {line["http"]["path"] for line in kitchen.gate.audit(type="http", phase="end", verdict="allow")}
    assert {"/simple/tidy-demo/", f"/files/{WHEEL}"} <= paths


def test_git_clones_and_pushes(kitchen: Kitchen) -> None:
    # The environment's helper is for port 443; the lab's server has another one, so its helper is set here.
    helper = '!f() { printf "username=x-access-token\\npassword=%s\\n" "$CODE_TOKEN"; }; f'
    number = int(kitchen.session.env["GIT_CONFIG_COUNT"])
    more = [f"GIT_CONFIG_COUNT={number + 1}", f"GIT_CONFIG_KEY_{number}=credential.helper"]
    command = ("sh", str(RECIPES / "git.sh"), kitchen.url(CODE, "/acme/demo.git"))
    done = kitchen.run("env", *more, f"GIT_CONFIG_VALUE_{number}={helper}", *command)
    assert done.returncode == 0, done.stderr
    assert run_git("rev-parse", "main", cwd=kitchen.repository).strip() == done.stdout.strip()


def test_no_recipe_sees_a_secret(kitchen: Kitchen) -> None:
    seen = " ".join(kitchen.session.env.values())
    assert KEY not in seen
    assert TOKEN not in seen


def test_every_recipe_is_listed_and_run_here() -> None:
    index, own = (RECIPES / "README.md").read_text(), Path(__file__).read_text()
    for recipe in RECIPES.iterdir():
        if recipe.is_file() and recipe.suffix != ".md":
            assert f"({recipe.name})" in index
            assert f'"{recipe.name}"' in own
