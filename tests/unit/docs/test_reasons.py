"""Each reason has a page that says what happened, why, and what to do, with the code's own facts."""

from pathlib import Path

import pytest

from tidegate.policy.reasons import Reason

PAGES = Path(__file__).parents[3] / "docs" / "reasons"
SECTIONS = ("## What happened\n", "## Why\n", "## What to do\n")


@pytest.mark.parametrize("reason", list(Reason), ids=lambda reason: reason.code)
def test_reason_has_a_page_that_is_current(reason: Reason) -> None:
    text = (PAGES / f"{reason.code}.md").read_text()
    assert text.startswith(f"# {reason.code}\n\n> {reason.text}\n")
    if reason.status is not None:
        assert f"Status {reason.status}, Proxy-Status `{reason.proxy_status}`" in text
    if reason.public_code != reason.code:
        assert f"told to the sandbox as `{reason.public_code}`" in text
    for section in SECTIONS:
        body = text.partition(section)[2].partition("##")[0].strip()
        assert len(body) > 7, f"{section.strip()} is empty"


@pytest.mark.parametrize("code", sorted({reason.public_code for reason in Reason}))
def test_code_told_to_the_sandbox_has_a_page(code: str) -> None:
    assert (PAGES / f"{code}.md").is_file()


def test_index_lists_every_reason_in_order_of_precedence() -> None:
    index = (PAGES / "README.md").read_text()
    listed = [line.split("](")[0].removeprefix("| [") for line in index.splitlines() if line.startswith("| [")]
    assert listed == [reason.code for reason in Reason]
    assert all(f"| {reason.text} |" in index for reason in Reason)


def test_no_page_without_a_reason() -> None:
    known = {reason.code for reason in Reason} | {reason.public_code for reason in Reason} | {"README"}
    assert {page.stem for page in PAGES.glob("*.md")} == known
