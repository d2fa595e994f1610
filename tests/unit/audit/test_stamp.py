"""Record time."""

from datetime import datetime

from hypothesis import given
from hypothesis import strategies as st

from tidegate.audit.stamp import TimeText


@given(st.lists(st.floats(0, 4e9), min_size=1, max_size=5))
def test_times_are_rfc_3339_and_true(walls: list[float]) -> None:
    text = TimeText()
    for wall in walls:
        shown = text.format(wall)
        assert len(shown) == 27
        assert shown.endswith("Z")
        assert abs(datetime.fromisoformat(shown).timestamp() - wall) < 2e-6
