"""Two dictionaries of labels: from a host name, and from a path, to what might apply.

Both are walked as deep as the rules go and no further, so the cost of a look-up depends neither
on the number of rules nor on how many labels or segments a client sends.
"""

from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address, ip_address

from tidegate.policy.names import Host, HostPattern

__all__ = ["LabelIndex", "SegmentIndex"]


class _Node[T]:
    __slots__ = ("below", "children", "here")

    def __init__(self) -> None:
        self.children: dict[str, _Node[T]] = {}
        self.here: T | None = None
        self.below: T | None = None

    def child(self, label: str) -> "_Node[T]":
        """Return the node of a label, made on first use."""
        found = self.children.get(label)
        if found is None:
            found = self.children[label] = _Node()
        return found


class LabelIndex[T]:
    """Values by host pattern; `find` answers the most specific first."""

    __slots__ = ("_addresses", "_depth", "_make", "_root")

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._root: _Node[T] = _Node()
        self._depth = 0
        self._addresses: dict[IPv4Address | IPv6Address, T] = {}

    def at(self, pattern: HostPattern) -> T:
        """Return the value of the pattern, made on first use."""
        if pattern.kind == "address":
            return self._addresses.setdefault(ip_address(pattern.text), self._make())
        labels = pattern.text.split(".")
        self._depth = max(self._depth, len(labels))
        node = self._root
        for label in reversed(labels):
            node = node.child(label)
        if pattern.kind == "name":
            node.here = node.here if node.here is not None else self._make()
            return node.here
        node.below = node.below if node.below is not None else self._make()
        return node.below

    def find(self, host: Host) -> list[T]:
        """Return the values of all patterns that match the host, the most specific first."""
        if not isinstance(host, str):
            literal = self._addresses.get(host)
            return [] if literal is None else [literal]
        labels = host.rsplit(".", self._depth)
        node = self._root
        found: list[T] = []
        for remaining in range(len(labels) - 1, -1, -1):
            child = node.children.get(labels[remaining])
            if child is None:
                break
            node = child
            if remaining == 0:
                if node.here is not None:
                    found.append(node.here)
            elif node.below is not None:  # the boundary is a label, and the apex is not below itself
                found.append(node.below)
        found.reverse()
        return found


class SegmentIndex[T]:
    """Values by the literal leading segments of a path glob."""

    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root: _Node[list[T]] = _Node()

    def add(self, prefix: tuple[str, ...], value: T) -> None:
        """Put the value under the prefix."""
        node = self._root
        for segment in prefix:
            node = node.child(segment)
        if node.here is None:
            node.here = []
        node.here.append(value)

    def find(self, segments: tuple[str, ...]) -> list[T]:
        """Return the values of every prefix of the segments, the shortest prefix first."""
        node = self._root
        found = list(node.here) if node.here is not None else []
        for segment in segments:
            child = node.children.get(segment)
            if child is None:
                break
            node = child
            if node.here is not None:
                found.extend(node.here)
        return found
