"""A store around another one: what tests build on to count, to stall and to fail."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime

from forewarn.maintenance.model import Sighting
from forewarn.maintenance.relays import Relay
from forewarn.maintenance.world import NOTHING
from forewarn.store.port import Membership, Replica
from forewarn.store.queries import Reading
from forewarn.store.sql import Store, Transaction


class Wrapped:
    """Does what the store inside it does."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner

    @property
    def shared(self) -> bool:
        return self.inner.shared

    @contextmanager
    def write(self) -> Iterator[Transaction]:
        with self.inner.write() as transaction:
            yield transaction

    @contextmanager
    def read(self) -> Iterator[Reading]:
        with self.inner.read() as reading:
            yield reading

    def beat(self, replica: Replica, seen: Mapping[str, Sighting] = NOTHING) -> datetime:
        return self.inner.beat(replica, seen)

    def see(self, seen: Mapping[str, Sighting], at: datetime) -> None:
        self.inner.see(seen, at)

    def hear(self, relays: Iterable[Relay], at: datetime | None = None) -> None:
        self.inner.hear(relays, at)

    def join(self, name: str) -> Membership:
        return self.inner.join(name)

    def close(self) -> None:
        self.inner.close()
