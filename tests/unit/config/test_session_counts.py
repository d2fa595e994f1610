"""How many sessions there may be: refused at load where the key means nothing, or the file itself breaks it."""

from pathlib import Path

import pytest

from tests.unit.config.test_load import problems, write
from tidegate.config.load import load

FILE = """
    version: 1
    policies:
      p:
        allow: [{{host: api.example.com}}]
        budgets: {budgets}
      q: {{allow: [{{host: api.example.com}}]}}
    sessions:
      a: {{policy: p, from: 10.0.0.1/32, owner: team}}
      b: {{policy: p, from: 10.0.0.2/32, owner: team}}
      c: {{policy: q, from: 10.0.0.3/32, owner: team}}
    """
NONE = "a session has no sessions of its own: count them in budgets.policy or budgets.owner"


@pytest.mark.parametrize(
    ("budgets", "found"),
    [
        pytest.param(
            "{session: {sessions: 5}}",
            [f"5 policies.p.budgets.session.sessions: {NONE}"],
            id="a-session-has-none",
        ),
        pytest.param("{policy: {sessions: 1}}", ["10 sessions.b: policy p may have 1 sessions at once"], id="policy"),
        pytest.param("{owner: {sessions: 1}}", ["10 sessions.b: owner team may have 1 sessions at once"], id="owner"),
    ],
)
def test_a_count_of_sessions_that_cannot_hold_is_refused(tmp_path: Path, budgets: str, found: list[str]) -> None:
    assert problems(write(tmp_path, FILE.format(budgets=budgets))) == found


def test_a_count_of_sessions_that_holds_is_taken(tmp_path: Path) -> None:
    path = write(tmp_path, FILE.format(budgets="{policy: {sessions: 2}, owner: {sessions: 2}}"))
    assert load(path, environ={}, flags={}).policies["p"].budgets_policy.sessions == 2
