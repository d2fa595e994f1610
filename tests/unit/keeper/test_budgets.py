from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.keeper.made import TurnedClock
from tidegate.keeper.budgets import BudgetBook
from tidegate.keeper.seal import Seal
from tidegate.keeper.store import SqliteStore


def _book(clock: TurnedClock, path: str | Path = ":memory:") -> BudgetBook:
    return BudgetBook(SqliteStore(Path(path), Seal(b"k" * 32)), clock)


@given(st.lists(st.tuples(st.integers(1, 40), st.floats(0, 30)), max_size=60))
def test_no_window_ever_holds_more_than_the_limit(draws: list[tuple[int, float]]) -> None:
    """Invariant: whatever is asked and when, any 60 seconds hold at most the limit."""
    clock = TurnedClock()
    book = _book(clock)
    granted: list[tuple[float, int]] = []
    for amount, pause in draws:
        clock.go(pause)
        granted.append((clock.wall(), book.draw("b", amount=amount, limit=100, window=60)))
    for at, _ in granted:
        assert sum(amount for when, amount in granted if at - 60 < when <= at) <= 100


def test_a_window_refills_and_a_restart_does_not(tmp_path: Path) -> None:
    clock = TurnedClock()
    assert _book(clock, tmp_path / "db").draw("b", amount=100, limit=100, window=60) == 100
    assert _book(clock, tmp_path / "db").draw("b", amount=1, limit=100, window=60) == 0
    clock.go(70)
    assert _book(clock, tmp_path / "db").draw("b", amount=1, limit=100, window=60) == 1


def test_a_wall_clock_that_steps_back_does_not_refill() -> None:
    clock = TurnedClock()
    book = _book(clock)
    assert book.draw("b", amount=100, limit=100, window=60) == 100
    clock.wall_now -= 3600
    assert book.draw("b", amount=1, limit=100, window=60) == 0
    clock.go(70)
    assert book.draw("b", amount=1, limit=100, window=60) == 1


def test_a_name_counts_once_while_it_is_used() -> None:
    clock = TurnedClock()
    book = _book(clock)
    assert [book.draw_name("n", name, limit=2, window=3600) for name in ("a", "b", "a", "c", "b")] == [1, 1, 1, 0, 1]
    clock.go(4000)
    assert book.draw_name("n", "c", limit=2, window=3600) == 1


def test_names_outlast_a_restart_and_go_with_their_session(tmp_path: Path) -> None:
    clock = TurnedClock()
    book = _book(clock, tmp_path / "db")
    names = [f"n{number}.test" for number in range(200)]
    assert all(book.draw_name("session/a/names", name, limit=200, window=3600) for name in names)
    book = _book(clock, tmp_path / "db")
    assert book.draw_name("session/a/names", "one-more.test", limit=200, window=3600) == 0
    assert book.draw_name("session/a/names", names[7], limit=200, window=3600) == 1
    book.drop("session/a/")
    book = _book(clock, tmp_path / "db")
    assert book.draw_name("session/a/names", "one-more.test", limit=200, window=3600) == 1


def test_a_wall_clock_that_steps_back_does_not_forget_names() -> None:
    clock = TurnedClock()
    book = _book(clock)
    assert book.draw_name("n", "a", limit=1, window=60) == 1
    clock.wall_now -= 3600
    assert book.draw_name("n", "b", limit=1, window=60) == 0
    clock.go(70)
    assert book.draw_name("n", "b", limit=1, window=60) == 1


def test_a_new_name_writes_a_small_part_of_what_its_bucket_holds() -> None:
    store = _Weighed()
    book = BudgetBook(store, TurnedClock())
    for number in range(10_000):
        assert book.draw_name("n", f"{number}.example.test", limit=20_000, window=3600)
    assert book.draw_name("n", "one-more.example.test", limit=20_000, window=3600) == 0  # the cap of any bucket
    assert max(store.sizes) < 10_000


class _Weighed(SqliteStore):
    """A store that notes how much is written at a time."""

    def __init__(self) -> None:
        super().__init__(Path(":memory:"), Seal(b"k" * 32))
        self.sizes: list[int] = []

    def put(self, shelf: str, key: str, value: bytes, *, hurried: bool = False) -> None:
        self.sizes.append(len(value))
        super().put(shelf, key, value, hurried=hurried)
