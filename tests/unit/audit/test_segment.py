"""Names and order of a chain's files."""

from pathlib import Path

from tidegate.audit.segment import CHAIN_NAME, chains, impostors, new_chain, segment_name, segments


def test_segments_are_in_order_of_writing_and_others_are_left_out(tmp_path: Path) -> None:
    names = [segment_name(0), segment_name(900), segment_name(900, 1), segment_name(10**12), "7.jsonl"]
    for name in [*reversed(names), "x.jsonl", "٣.jsonl", "1.jsonl.gz", "1.json", "-1.jsonl"]:
        (tmp_path / name).touch()
    assert [segment.path.name for segment in segments(tmp_path)] == [
        segment_name(0), "7.jsonl", segment_name(900), segment_name(900, 1), segment_name(10**12),
    ]  # fmt: skip


def test_only_directories_with_a_chains_name_are_chains(tmp_path: Path) -> None:
    (tmp_path / "gate-1").mkdir()
    (tmp_path / ".cache").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "gate-1")
    assert chains(tmp_path) == [tmp_path / "gate-1"]
    assert impostors(tmp_path) == {"file", "link"}


def test_no_two_process_starts_share_a_name() -> None:
    names = {new_chain("gate") for _ in range(100)}
    assert len(names) == 100
    assert all(CHAIN_NAME.match(name) for name in names)
