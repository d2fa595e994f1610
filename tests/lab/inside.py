"""What is run inside a namespace: a sandbox's command, its `curl`, its question, and `tidegate wall` at the gate.

    answer = ask(place.client_prefix, "api.allowed.test", "AAAA", server=GATE)

A sandbox's command has no proxy variable: what it reaches, it reaches by names and routes.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.lab.gate import environment, tidegate_command
from tests.lab.world import World

__all__ = ["Answer", "ask", "curl", "run", "wall"]

_ASK = """
import sys, dns.message, dns.query, dns.rcode
name, rrtype, server, how = sys.argv[1:]
ask = dns.query.tcp if how == "tcp" else dns.query.udp
reply = ask(dns.message.make_query(name, rrtype), server, timeout=5)
print(dns.rcode.to_text(reply.rcode()))
for rrset in reply.answer:
    for item in rrset:
        print(item.to_text())
"""


class Answer(NamedTuple):
    """What a server said: the code's name, and its records' texts in order."""

    code: str
    found: list[str]


def run(prefix: Sequence[str], *command: str) -> subprocess.CompletedProcess[str]:
    """Run a sandbox's command behind `prefix`, to its end or 40 s."""
    env = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin"}
    return subprocess.run([*prefix, *command], capture_output=True, text=True, timeout=40, env=env, check=False)


def curl(prefix: Sequence[str], ca: Path, url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Fetch `url` as the sandbox, which trusts `ca`; 20 s at most."""
    return run(prefix, "curl", "-sS", "-m", "20", "--cacert", str(ca), *arguments, url)


def ask(prefix: Sequence[str], name: str, rrtype: str = "A", *, server: str, tcp: bool = False) -> Answer:
    """Ask a DNS server as the sandbox. Raises `AssertionError` where none answers."""
    done = run(prefix, sys.executable, "-c", _ASK, name, rrtype, server, "tcp" if tcp else "udp")
    assert done.returncode == 0, done.stderr[-500:]
    code, *found = done.stdout.splitlines()
    return Answer(code, found)


def wall(place: World, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `tidegate wall` at the gate's end of the links."""
    return subprocess.run(
        [*place.gate_prefix, *tidegate_command("wall", *arguments)],
        capture_output=True, text=True, env=environment(), timeout=40, check=False,
    )  # fmt: skip
