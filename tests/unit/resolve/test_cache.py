"""Entries end with their TTL or the bound, and the oldest goes first."""

from tests.lab.clock import SteppedClock
from tidegate.resolve.cache import TtlCache


def test_an_entry_ends_with_its_ttl():
    clock = SteppedClock()
    cache: TtlCache[str, int] = TtlCache(capacity=10, max_ttl=300, clock=clock)
    cache.put("a", 1, ttl=5)
    clock.forward(4)
    assert cache.get("a") == (1, 1.0)
    clock.forward(1)
    assert cache.get("a") is None
    assert len(cache) == 0


def test_no_entry_lives_longer_than_the_bound():
    clock = SteppedClock()
    cache: TtlCache[str, int] = TtlCache(capacity=10, max_ttl=300, clock=clock)
    cache.put("a", 1, ttl=86400)
    clock.forward(300)
    assert cache.get("a") is None


def test_ttl_zero_is_not_kept():
    cache: TtlCache[str, int] = TtlCache(capacity=10, max_ttl=300, clock=SteppedClock())
    cache.put("a", 1, ttl=0)
    assert cache.get("a") is None


def test_D_20_the_cache_is_bounded_and_drops_the_least_used():
    cache: TtlCache[int, int] = TtlCache(capacity=3, max_ttl=300, clock=SteppedClock())
    for number in range(3):
        cache.put(number, number, ttl=60)
    cache.get(0)
    for number in range(3, 5):
        cache.put(number, number, ttl=60)
    assert len(cache) == 3
    assert [number for number in range(5) if cache.get(number)] == [0, 3, 4]
