"""Invariant: no bytes, of a client or of an upstream, make the data plane raise, or forward without a decision.

Run by hand, with atheris installed, one target at a time and for as long as one likes:
`PYTHONPATH=. python tests/fuzz/atheris_proxy_bytes.py request -max_total_time=60`; targets are below.
"""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["tidegate.exchange", "tidegate.runtime", "tidegate.policy", "h11"]):
    from tests.fuzz.bytes_in import CLIENT_SEEDS, HELLO, SERVER_SEEDS, play, read_hello, read_request, read_response


def _whole(data: bytes) -> None:
    """The first byte picks seeds and cuts; what follows is spliced into what the client and the upstream say."""
    if len(data) < 4:
        return
    client, server = CLIENT_SEEDS[data[0] % len(CLIENT_SEEDS)], SERVER_SEEDS[data[1] % len(SERVER_SEEDS)]
    at, rest = data[2], data[4:]
    middle = len(rest) * data[3] // 255
    said = client[:at] + rest[:middle] + client[at:]
    heard = server[: at % 64] + rest[middle:] + server[at % 64 :]
    half = len(said) // 2
    play([said[:half], said[half:], client], [heard, b"" if data[3] & 1 else heard])


TARGETS: dict[str, Callable[[bytes], None]] = {
    "request": read_request,
    "response": read_response,
    "hello": read_hello,
    "whole": _whole,
}


def _seeds(folder: Path) -> None:
    """Begin with what is well formed: a regular expression tells a fuzzer nothing of what it waits for."""
    for number, seed in enumerate((*CLIENT_SEEDS, *SERVER_SEEDS, HELLO)):
        (folder / f"{number}-whole").write_bytes(seed)
        (folder / f"{number}-head").write_bytes(seed.partition(b"\r\n\r\n")[0])


if __name__ == "__main__":
    target = TARGETS[sys.argv.pop(1)]
    with tempfile.TemporaryDirectory() as corpus:
        _seeds(Path(corpus))
        atheris.Setup([*sys.argv, corpus], target)
        atheris.Fuzz()
