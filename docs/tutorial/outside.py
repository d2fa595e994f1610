"""A little outside world for the tutorial and the recipes: a DNS server and one https service, on loopback.

    python docs/tutorial/outside.py FOLDER

It writes FOLDER/outside-ca.pem (the CA that the service's certificate is from) and FOLDER/api-key (the key
that the service asks for), prints what there is, and serves until it is ended.

| name               | what                                                                       |
|--------------------|----------------------------------------------------------------------------|
| api.partner.test   | /me wants the key; /echo says what came; /away redirects to evil.test       |
| inside.partner.test| resolves to 10.0.0.5, as a rebinding name would                             |
| evil.test          | the same service under a name that no policy allows                        |
"""

import argparse
import os
import secrets
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.lab.certs import Authority
from tests.lab.dns import addresses, dns_server
from tests.lab.http import Reply, Request
from tests.lab.upstream import Connection, upstream

ADDRESS = "127.0.7.10"
KEEPER = 64731  # the keeper's user, where the machine has none of its name


def _write_key(path: Path, key: str) -> None:
    """Write a secret as the keeper wants it: its own, and nobody else's to read."""
    path.unlink(missing_ok=True)
    path.touch(0o600)
    path.write_text(key)
    path.chmod(0o400)
    if os.geteuid() == 0:
        os.chown(path, KEEPER, KEEPER)


def main() -> None:
    """Serve until SIGINT or SIGTERM."""
    options = argparse.ArgumentParser(description="A little outside world on loopback.")
    options.add_argument("folder", type=Path)
    options.add_argument("--dns-port", type=int, default=5300)
    options.add_argument("--https-port", type=int, default=8443)
    given = options.parse_args()
    key = f"sk-partner-{secrets.token_hex(20)}"
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})

    async def me(_: Connection, request: Request) -> Reply:
        known = request.header("authorization") == f"Bearer {key}"
        return Reply(200, [], b"hello, acme\n") if known else Reply(401, [], b"who are you?\n")

    names = {
        "api.partner.test": addresses(ADDRESS),
        "evil.test": addresses(ADDRESS),
        "inside.partner.test": addresses("10.0.0.5"),
    }
    with (
        Authority() as ca,
        dns_server(names, port=given.dns_port) as dns,
        upstream(ca=ca, names=("api.partner.test", "evil.test"), address=ADDRESS, port=given.https_port) as server,
    ):
        away = f"HTTP/1.1 302 Found\r\nLocation: https://evil.test:{server.port}/\r\nContent-Length: 0\r\n\r\n"
        server.route("/me", me)
        server.route("/away", away.encode())
        (given.folder / "outside-ca.pem").write_bytes(ca.pem.read_bytes())
        _write_key(given.folder / "api-key", key)
        print(f"api.partner.test is at {ADDRESS}:{server.port}; DNS at {dns.address}", flush=True)
        signal.sigwait({signal.SIGINT, signal.SIGTERM})


if __name__ == "__main__":
    main()
