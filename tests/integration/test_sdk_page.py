"""Every example of the page on the SDK, run as a reader would run it, against what the page says it prints."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.certs import Authority
from tests.lab.dns import addresses, dns_server
from tests.lab.gate import Gate, configuration, environment, gate, rule
from tests.lab.images import keep_image
from tests.lab.roots import why_no_gvisor
from tests.lab.upstream import says, upstream

pytestmark = pytest.mark.skipif(why_no_gvisor() is not None, reason=f"no gVisor: {why_no_gvisor()}")

PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/use-the-sdk.md"
API = "api.github.com"
HOME = f"127.{os.getpid() % 200 + 20}.{os.getpid() // 200 % 250 + 1}.12"
EXAMPLES = re.findall(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", PAGE.read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def running() -> Iterator[Gate]:
    with (
        Authority() as ca,
        dns_server({API: addresses(HOME)}) as dns,
        upstream(ca=ca, names=(API,), address=HOME, port=443, routes={"/repos/acme/widgets": says(b"{}")}),
    ):
        config = configuration(dns=dns, ca=ca)
        config["policies"] = {"triage": {"allow": [rule(API, methods=["GET"], paths=["/repos/acme/**"])]}}
        with gate(config) as one:
            keep_image(one.state)
            yield one


def _run(command: list[str], folder: Path, running: Gate) -> subprocess.CompletedProcess[str]:
    known = {"TIDEGATE_STATE_DIR": str(running.state), "TIDEGATE_CONFIG": str(running.config_file)}
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment(known), capture_output=True, text=True, timeout=100
    )


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == 9


@pytest.mark.parametrize(
    ("code", "printed"), [pytest.param(*one, id=f"{number}") for number, one in enumerate(EXAMPLES, 1)]
)
def test_an_example_runs_and_prints_what_the_page_says(code: str, printed: str, running: Gate, tmp_path: Path) -> None:
    named = re.match(r"# (test_\w+\.py)\n", code)
    path = tmp_path / (named[1] if named else "example.py")
    path.write_text(code)
    done = _run(["-m", "pytest", "-q", path.name] if named else [path.name], tmp_path, running)
    assert done.returncode == 0, done.stdout + done.stderr
    assert printed in done.stdout if named else printed == done.stdout


def test_the_way_to_a_contained_run_is_ten_lines() -> None:
    text = PAGE.read_text().partition("## 3")[0]
    shown = re.findall(r"```(?:sh|python)\n(.*?)```", text, re.DOTALL)
    assert 4 <= len([line for block in shown for line in block.splitlines() if line]) <= 10
