"""The points that are made for what is mounted on: nowhere that a link of the root's leads to."""

from pathlib import Path

import pytest

from tidegate.errors import LaunchError
from tidegate_launcher.job import DOOR, Job
from tidegate_launcher.view import bind_at, words


@pytest.fixture
def job(tmp_path: Path) -> Job:
    (tmp_path / "root" / "etc").mkdir(parents=True)
    return Job(id="test", argv=("true",), root=tmp_path / "root")


def test_each_bind_is_a_source_and_a_point_and_has_a_place_by_its_number(job: Job) -> None:
    assert words(job, ((Path("/a"), "/x"), (Path("/b"), "/y"))) == ["/a", "/x", "/b", "/y", "--"]
    assert str(bind_at(1)) == "/mnt/binds/1"


@pytest.mark.parametrize(
    ("link", "target"),
    [("work", ""), ("dev", ""), ("opt", "/opt/x"), ("run", DOOR)],
    ids=["of-ours", "above-ours", "of-a-bind", "of-the-door"],
)
def test_a_point_that_a_link_of_the_root_leads_away_from_is_refused(job: Job, link: str, target: str) -> None:
    (job.root / link).symlink_to("/etc")
    with pytest.raises(LaunchError, match="follow a link"):
        words(job, ((Path("/a"), target),) if target else ())


def test_a_link_where_nothing_is_mounted_is_the_roots_own_affair(job: Job) -> None:
    (job.root / "run").symlink_to("/etc")
    assert words(job, ()) == ["--"]
