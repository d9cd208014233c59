"""A bounded part of something long, evenly spread."""

from __future__ import annotations

from typing import Generic, TypeVar

Item = TypeVar("Item")


class Thinned(Generic[Item]):
    """Keeps every item at first, and whenever there are too many, every second one of them.

    So the kept ones are evenly spread, however long it goes on, and which ones are wanted is known
    before they are made.

    Args:
        limit: how many are kept at most.

    Attributes:
        items: those kept.
        stride: every so manieth is kept.
    """

    def __init__(self, limit: int) -> None:
        self.items: list[Item] = []
        self.stride = 1
        self._limit = limit
        self._count = 0

    def wanted(self) -> bool:
        """Counts one more; whether it is to be added."""
        self._count += 1
        return (self._count - 1) % self.stride == 0

    def add(self, item: Item) -> None:
        """Keeps one that was wanted."""
        self.items.append(item)
        if len(self.items) > self._limit:
            del self.items[1::2]
            self.stride *= 2
