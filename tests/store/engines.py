"""The engines that every promise is held against. A second one is added here, and only here."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from forewarn.store import memory, sqlite
from forewarn.store.port import Store


@dataclass(frozen=True)
class Engine:
    """How tests open a store of one kind."""

    name: str
    open: Callable[[Path], Store]
    """Opens the one store that lives in a folder, as an empty one the first time."""
    persists: bool
    """Whether it is still there when it is opened again."""

    def __str__(self) -> str:
        return self.name


ENGINES = [
    Engine("sqlite-file", lambda folder: sqlite.open_store(folder / "store.db"), persists=True),
    Engine("memory", lambda _: memory.MemoryStore(), persists=False),
]
SHARED_ENGINES = [
    Engine("memory-shared", lambda _: memory.MemoryStore(shared=True), persists=False),
]
"""Stores that several processes, here threads, may have open."""
