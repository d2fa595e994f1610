"""Invariant: no bytes in an audit directory make a reader raise; verify says «not whole», log leaves them out."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import example, given
from hypothesis import strategies as st

from tests.unit.audit.making import SignedLog, files, written
from tidegate.audit.checkpoint import decode_key, open_note
from tidegate.audit.query import Filter, Reader
from tidegate.audit.table import row
from tidegate.audit.walk import walk
from tidegate.errors import AuditError

PUBLIC = Ed25519PrivateKey.from_private_bytes(b"\x01" * 32).public_key()
START = b'{"v":1,"ts":"t","chain":"gate-1","seq":0,"prev":"' + b"0" * 64 + b'","type":"writer","x":'

values = st.sampled_from([b"0", b'"a"', b"null", b"{}", b"1e999", b"[[]]", rb'"\ud800"'])


@given(st.one_of(st.binary(max_size=300), values.map(lambda value: START + value + b"}\n")))
@example(START + b"[" * 200_000 + b"\n")
@example(START + b'{"a":' * 100_000 + b"\n")
@example(b"\n" * 50)
@example(START + b"1}\n" + b"x" * (1 << 21))
def test_any_bytes_in_a_segment(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    chain = tmp_path_factory.mktemp("log") / "gate-1"
    chain.mkdir()
    (chain / "000000000000.jsonl").write_bytes(raw)
    found = walk(chain, PUBLIC)
    assert found.wrong is not None or found.torn is not None
    for entry in Reader(chain.parent, Filter(host="x")).read():
        row(entry)
    for entry in Reader(chain.parent, Filter()).read():
        row(entry)


@given(st.data())
def test_a_record_with_any_bytes_changed(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    log = SignedLog(tmp_path_factory.mktemp("log"))
    written(log, requests=1)
    (path,) = files(log.directory / "gate-1")
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 5))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(raw)
    walk(path.parent, log.key.public_key())
    for entry in Reader(log.directory, Filter()).read():
        assert all(cell.isprintable() for cell in row(entry).cells)


@given(st.text())
def test_any_text_as_a_note_or_key(text: str) -> None:
    for read in (
        lambda: open_note(text, PUBLIC),
        lambda: open_note(f"tidegate.audit/{text}", PUBLIC),
        lambda: decode_key(text),
    ):
        with pytest.raises(AuditError):
            read()


def test_a_directory_in_the_place_of_a_segment(tmp_path: Path) -> None:
    (tmp_path / "gate-1" / "000000000000.jsonl").mkdir(parents=True)
    assert walk(tmp_path / "gate-1", PUBLIC).wrong is not None
    reader = Reader(tmp_path, Filter())
    assert list(reader.read()) == []
    assert list(reader.unread) == ["gate-1/000000000000.jsonl"]
