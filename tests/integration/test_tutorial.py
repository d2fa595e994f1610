"""The tutorial, each of its shell blocks, run as a reader would: in one shell, in order, with free ports."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.gate import ROOT, environment
from tests.lab.sockets import free_port

PAGE = ROOT / "docs" / "tutorial" / "first-gate.md"
MARK = "== block "

EXPECTED = {
    "check": "no error; policies: 1, rules: 2, warnings: 0",
    "explain": "exit code 3",
    "health": "ready",
    "visit": "hello, acme",
    "host": '"reason":"not_in_allowlist"',
    "path": '"reason":"path_not_allowed"',
    "metadata": '"reason":"metadata"',
    "address": '"reason":"destination_unavailable"',
    "redirect": '"reason":"redirect_denied"',
    "placeholder in a URL": '"reason":"credential_out_of_scope"',
    "log of the address": "resolved_blocked",
    "log of the echo": "reflected_secret",
    "whole": "whole: ",
    "not whole": "not whole: ",
    "verify says no": "exit code 1",
}


@pytest.fixture(scope="module")
def said() -> Iterator[str]:
    folder = Path(tempfile.mkdtemp(prefix="tg-", dir="/tmp"))  # a short path: unix sockets
    folder.chmod(0o755)
    home = folder / "first-gate"
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) > 8
    script = "set -e\n" + "\n".join(f"echo '{MARK}{number}'\n{block}" for number, block in enumerate(blocks))
    script = script.replace("/tmp/first-gate", str(home))
    for port in ("5300", "8443", "8080"):
        script = script.replace(port, str(free_port()))
    script = script.replace("outside.py . >", f"outside.py . {_ports(script)} >")
    bin_ = folder / "bin"
    bin_.mkdir()
    shim = bin_ / "tidegate"
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m tidegate "$@"\n')
    shim.chmod(0o755)
    env = environment({"PATH": f"{bin_}:{Path(sys.executable).parent}:{os.environ['PATH']}"})
    for name in ("TIDEGATE_CONFIG", "TIDEGATE_STATE_DIR"):
        env.pop(name, None)
    try:
        done = subprocess.run(
            ["bash", "-m", "-c", script],
            cwd=ROOT,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-3000:]
        yield done.stdout
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _ports(script: str) -> str:
    dns, https = re.search(r'servers: \["127.0.0.1:(\d+)"\]', script), re.search(r"ports: \[(\d+)\]", script)
    assert dns is not None
    assert https is not None
    return f"--dns-port {dns[1]} --https-port {https[1]}"


@pytest.mark.parametrize("what", sorted(EXPECTED))
def test_the_tutorial_comes_out_as_it_says(said: str, what: str) -> None:
    assert EXPECTED[what] in said, said[-4000:]


def test_the_secret_is_never_on_the_screen(said: str) -> None:
    assert "sk-partner-" not in said
