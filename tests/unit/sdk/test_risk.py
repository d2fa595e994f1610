"""The one place that says which sandbox a call is in."""

import pytest

from tidegate.errors import LaunchError
from tidegate.sdk.risk import sandbox_for


@pytest.mark.parametrize(
    ("risk", "shared", "where"),
    [
        pytest.param("high", "shared", "fresh", id="high, though one is shared"),
        pytest.param("high", None, "fresh", id="high"),
        pytest.param("low", "shared", "shared", id="low, and one is shared"),
        pytest.param("low", None, "fresh", id="low"),
    ],
)
def test_a_call_of_high_risk_is_always_in_a_fresh_sandbox(risk: str, shared: str | None, where: str) -> None:
    assert sandbox_for(risk, fresh="fresh", shared=shared) == where  # type: ignore[arg-type]


@pytest.mark.parametrize("risk", ["medium", "HIGH", "", None])
def test_a_risk_that_is_none_runs_nothing(risk: str) -> None:
    with pytest.raises(LaunchError, match="low, high"):
        sandbox_for(risk, fresh="fresh", shared="shared")  # type: ignore[arg-type]
