"""Factories of the audit tests: a signed log with a keeper's chain and a gate's."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.lab.clock import SteppedClock
from tidegate.audit.checkpoint import sign_note
from tidegate.audit.event import Checkpoint, Common, Conn, Head, Http, Subject, Writer
from tidegate.audit.recorder import Recorder
from tidegate.audit.redact import loggable
from tidegate.audit.writer import ChainWriter
from tidegate.policy.reasons import Reason, Verdict

ALICE = Subject(session="s-alice", owner="team", policy_hash="0" * 16)
BOB = Subject(session="s-bob", owner="team", policy_hash="0" * 16)


def common(kind: str = "http") -> Common:
    """The common part of an allowed request's decision."""
    return Common(
        session="s-alice", owner="team", flow="f" * 16, parent=None, type=kind, phase="decision",
        verdict=Verdict.ALLOW, reason=None, rule="r.1", policy_hash="0" * 16,
    )  # fmt: skip


def own(kind: str) -> Common:
    """The common part of what no session did."""
    return Common(
        session=None, owner=None, flow=None, parent=None, type=kind, phase="event",
        verdict=None, reason=None, rule=None, policy_hash=None,
    )  # fmt: skip


def http(host: str = "api.example.com", path: str = "/v1/items", **more: object) -> Http:
    base = {"method": loggable("GET"), "scheme": loggable("https"), "port": 443}
    return Http(host=loggable(host), path=loggable(path, 1024), **{**base, **more})  # type: ignore[arg-type]


def conn(name: str = "api.example.com", **more: object) -> Conn:
    return Conn(client="10.0.0.2:40000", name=loggable(name), port=443, **more)  # type: ignore[arg-type]


def allow(
    recorder: Recorder, subject: Subject = ALICE, *, host: str = "api.example.com", path: str = "/"
) -> Reason | None:
    return recorder.http_decision(subject, "f" * 16, http(host, path), verdict=Verdict.ALLOW, rule="r.1")


def deny(recorder: Recorder, subject: Subject = ALICE, *, host: str = "evil.example") -> Reason | None:
    reason = Reason.NOT_IN_ALLOWLIST
    return recorder.http_decision(subject, "f" * 16, http(host), verdict=Verdict.DENY, reason=reason)


def lines(directory: Path) -> list[dict[str, object]]:
    """Every record below `directory`, a chain after the other."""
    return [json.loads(line) for path in files(directory) for line in path.read_bytes().splitlines()]


def files(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*.jsonl"))


def blocks(directory: Path, kind: str) -> list[dict[str, object]]:
    """The records of one type."""
    return [line for line in lines(directory) if line["type"] == kind]


@dataclass
class SignedLog:
    """A log as a gate leaves it: `keeper-1` books and signs, `gate-1` (and more) write."""

    directory: Path
    clock: SteppedClock = field(default_factory=SteppedClock)
    key: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)
    segment_bytes: int = 1 << 20

    def __post_init__(self) -> None:
        self.keeper = ChainWriter(self.directory, "keeper-1", clock=self.clock, role="keeper", fsync="never")

    def gate(self, chain: str = "gate-1") -> Recorder:
        """Start a writer that the keeper knows."""
        self.book("born", Head(chain, -1, "0" * 64))
        writer = ChainWriter(self.directory, chain, clock=self.clock, fsync="never", segment_bytes=self.segment_bytes)
        return Recorder(writer, self.clock)

    def book(self, act: str, head: Head) -> None:
        mark = Writer(act=act, chain=head.chain, seq=head.seq, head=head.head)  # type: ignore[arg-type]
        self.keeper.append(own("writer"), mark, keep=True)

    def checkpoint(self, recorder: Recorder) -> None:
        """Have the keeper sign and book a gate's head."""
        head = recorder.head()
        self.book("head", head)
        assert recorder.checkpoint(head, self.note(head))

    def seal(self) -> None:
        """Put a checkpoint on the keeper's own chain."""
        head = self.keeper.current()
        block = Checkpoint(covers=head.seq, head=head.head, note=self.note(head))
        self.keeper.append(own("checkpoint"), block, keep=True)
        self.keeper.signed(head.seq)

    def note(self, head: Head) -> str:
        return sign_note(head, self.key.sign, self.key.public_key())


def written(log: SignedLog, *, requests: int = 6) -> Recorder:
    """Fill a log with a gate that wrote `requests` requests, a checkpoint, and as many again."""
    recorder = log.gate()
    for number in range(requests):
        allow(recorder, path=f"/before/{number}")
    log.checkpoint(recorder)
    for number in range(requests):
        allow(recorder, path=f"/after/{number}")
    log.seal()
    return recorder


def last_head(chain: Path) -> Head:
    """Return where a chain stands by its last whole line."""
    lines = [line for path in sorted(chain.glob("*.jsonl")) for line in path.read_bytes().split(b"\n")[:-1]]
    return Head(chain.name, json.loads(lines[-1])["seq"], hashlib.sha256(lines[-1]).hexdigest())


def rewrite(path: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
    """Change a segment's lines in place."""
    path.write_bytes(b"".join(line + b"\n" for line in change(path.read_bytes().splitlines())))


def forge(path: Path, old: bytes, new: bytes) -> None:
    """Replace `old` by `new` and hash everything anew, as someone who knows the format would."""
    prev, out = b"0" * 64, []
    for line in path.read_bytes().splitlines():
        record = json.loads(line)
        out.append(line.replace(record["prev"].encode(), prev).replace(old, new))
        prev = hashlib.sha256(out[-1]).hexdigest().encode()
    path.write_bytes(b"".join(line + b"\n" for line in out))
