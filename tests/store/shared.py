"""A store in memory that several replicas of one process share, as they would PostgreSQL."""

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

from forewarn.store.port import StoreUnusable
from forewarn.store.queries import Reading
from forewarn.store.sql import Transaction
from forewarn.store.sqlite import IN_MEMORY, InMemoryStore, SqliteConnection


class SharedStore(InMemoryStore):
    """SQLite in memory, with names of replicas, and news of changes."""

    def __init__(self) -> None:
        super().__init__()
        self._keep()
        self._names: set[str] = set()
        self._last = 0
        """The number of the last change."""
        self._told = threading.Condition()

    @property
    def shared(self) -> bool:
        return True

    @contextmanager
    def write(self) -> Iterator[Transaction]:
        with super().write() as transaction:
            yield transaction
        self._keep()
        if transaction.appended is not None:
            with self._told:
                self._last = transaction.appended.sequence
                self._told.notify_all()

    @contextmanager
    def read(self) -> Iterator[Reading]:
        """Open a view of what is committed: as in PostgreSQL, it waits for nobody who writes."""
        with closing(SqliteConnection(IN_MEMORY, "", self._committed)) as connection:
            yield Reading(connection)

    def join(self, name: str) -> "Member":
        return Member(self, name)

    def _keep(self) -> None:
        with self._pool.taken() as connection:
            self._committed = connection.driver.serialize()


class Member:
    """`port.Membership` of a shared store in memory."""

    def __init__(self, store: SharedStore, name: str) -> None:
        self._store = store
        self._name = name
        with store._told:
            if name in store._names:
                raise StoreUnusable(f"another replica has the name {name!r}: give each its own")
            store._names.add(name)
            self._seen = store._last

    def wait(self, seconds: float) -> int:
        with self._store._told:
            self._store._told.wait_for(lambda: self._store._last != self._seen, seconds)
            before, self._seen = self._seen, self._store._last
        return self._seen if self._seen != before else 0

    def close(self) -> None:
        with self._store._told:
            self._store._names.discard(self._name)


@contextmanager
def lost_tail(store: SharedStore) -> Iterator[None]:
    """Forget what is committed within, as a standby does that was behind and is promoted."""
    with store._pool.taken() as connection:
        before = connection.driver.serialize()
    yield
    with store._pool.taken() as connection:
        connection.driver = SqliteConnection(IN_MEMORY, "", before).driver
        store._committed = before
