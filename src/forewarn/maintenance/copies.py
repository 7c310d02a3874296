"""A dictionary that knows what was written to it, for working copies of large snapshots."""

from collections.abc import Mapping
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Copy(dict[K, V]):
    """A copy that knows what was written to it: what it came to costs what changed, not all."""

    def __init__(self, of: Mapping[K, V]) -> None:
        super().__init__(of)
        self._of = of
        self._written: dict[K, None] = {}

    def __setitem__(self, name: K, value: V) -> None:
        """Write a value down."""
        super().__setitem__(name, value)
        self._written[name] = None

    def changed(self) -> tuple[V, ...]:
        """Return the values that are other than they were, in the order of their writing."""
        before = self._of
        return tuple(
            self[name]
            for name in self._written
            if name not in before or (before[name] is not self[name] and before[name] != self[name])
        )
