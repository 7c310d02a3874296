"""Connections to a database, whatever the engine, and the form of statements.

A statement is written as for SQLite. `{among}` in it stands for one of a list of keys, and `{rows}`
for rows that are written at once: each engine has its own text for these.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import islice
from typing import Any, ClassVar, Final, Generic, TypeAlias, TypeVar

from forewarn.store.port import Position, StoreError, StoreUnavailable

Row: TypeAlias = tuple[Any, ...]
Explain: TypeAlias = Callable[[BaseException, str], StoreError | None]
"""Returns the meaning of a database's error; None for a mistake of ours."""

ROWS_AT_ONCE: Final = 5000
"""The most rows that are written by one statement, or copied in one step."""

IDLE_CONNECTIONS: Final = 4
"""Connections kept open: a writer's and a few readers'."""

MAX_CONNECTIONS: Final = 36
"""Connections at once: one for each of asyncio's 32 worker threads, and a few."""


class DatabaseConnection(ABC):
    """A connection of one engine, which one thread has at a time."""

    ERRORS: ClassVar[type[Exception]]
    ANNOUNCE: ClassVar[str] = ""
    """The statement that tells other replicas of a change, by its number as text, if there are
    any."""
    KEEP_REPORTS_OUT: ClassVar[str] = ""
    """The statement after which no report writes a sighting before the transaction ends."""
    COUNT_ON: ClassVar[str] = ""
    """The statement that continues the numbers of operations after the highest, if one is needed.
    """
    driver: Any
    """The connection of the engine's own driver."""

    def __init__(self, place: str, explain: Explain) -> None:
        self.place = place
        self._explain = explain
        self._failure: BaseException | None = None
        self.began_at: datetime | None = None
        """The database's time when the transaction began; None where the process's clock counts."""
        self.last_change: Position | None = None
        """The last change of the outbox then, if that was read at once."""

    @property
    @abstractmethod
    def is_idle(self) -> bool:
        """True if it is open, and in no transaction."""

    @abstractmethod
    def begin(self, *, writing: bool) -> None:
        """Begin a transaction; one that writes has the database's write lock."""

    @abstractmethod
    def end(self, *, commit: bool) -> None:
        """End the transaction, if there is one."""

    def close(self) -> None:
        """Close it."""
        self.driver.close()

    @abstractmethod
    def _execute(self, sql: str, values: Sequence[Any]) -> Iterable[Row]:
        """Run a statement."""

    @abstractmethod
    def _send(self, sql: str, values: Sequence[Any]) -> None:
        """Run a statement without an answer, at the latest before the next one that has one."""

    @abstractmethod
    def _write(self, sql: str, rows: list[Row]) -> None:
        """Run a statement for all these rows, as `_send` does."""

    @staticmethod
    @abstractmethod
    def keys(keys: Collection[Any]) -> object:
        """Return keys as the value for `{among}`."""

    def check(self) -> None:
        """Raise the error of an earlier statement of the transaction again.

        After some failures SQLite has rolled back by itself, and the next statement would be a
        transaction of its own.
        """
        if self._failure is not None:
            raise self._failure

    def start(self, begin: "Begin") -> None:
        """Begin a transaction, whatever the state of the one before; all of it, or none."""
        self._failure = None
        try:
            with self._told():
                begin(self)
        except BaseException:
            self.abandon()
            raise

    def commit(self) -> None:
        """End the transaction; all of it is durable from then on."""
        with self._told():
            self.end(commit=True)

    def abandon(self) -> None:
        """Roll the transaction back. The first error is the one to report."""
        with suppress(self.ERRORS):  # some errors have rolled back already, or closed it
            self.end(commit=False)
        self._failure = None

    def run(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        """Run a statement, and return its rows; none may follow one that failed."""
        return list(self.each(sql, values))

    def each(self, sql: str, values: Sequence[Any] = ()) -> Iterator[Row]:
        """Yield the rows of a statement."""
        self.check()
        with self._told():
            yield from self._execute(sql, values)

    def send(self, sql: str, values: Sequence[Any]) -> None:
        """Run a statement without an answer; its error may come with the next, or the commit."""
        self.check()
        with self._told():
            self._send(sql, values)

    def write(self, sql: str, rows: Iterable[Row]) -> None:
        """Run a statement for rows with different keys; its error may come as that of `send`."""
        remaining = iter(rows)
        while part := list(islice(remaining, ROWS_AT_ONCE)):
            self.check()
            with self._told():
                self._write(sql, part)

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (self.ERRORS, StoreError) as error:
            explained = self._explain(error, self.place)
            self._failure = explained or error
            if explained is None or explained is error:
                raise
            raise explained from error


C = TypeVar("C", bound=DatabaseConnection)

Begin: TypeAlias = Callable[[Any], None]
"""Begins a transaction on a connection of one engine."""


class Pool(Generic[C]):
    """Connections to one database.

    Args:
        connect: Makes one.
        seconds: The wait for a free one, where all are in use.
        place: The database's name in messages.
        most: The most connections at once.
        release: Called once it is closed.
    """

    def __init__(
        self,
        connect: Callable[[], C],
        seconds: float,
        place: str,
        *,
        most: int = MAX_CONNECTIONS,
        release: Callable[[], None] = lambda: None,
    ) -> None:
        self._connect = connect
        self._seconds = seconds
        self._release = release
        self.place = place
        self._idle: list[C] = []
        self._free = threading.Semaphore(most)
        self._lock = threading.Lock()

    @contextmanager
    def taken(self) -> Iterator[C]:
        """Lend a connection to the block."""
        connection = self.take()
        try:
            yield connection
        finally:
            self.put_back(connection)

    def take(self) -> C:
        """Return a connection, which is to be put back.

        Raises:
            StoreUnavailable: None became free in time.
        """
        if not self._free.acquire(timeout=self._seconds):
            raise StoreUnavailable(
                f"cannot use {self.place} now: all its connections are in use; nothing was "
                "changed; try again"
            )
        try:
            with self._lock:
                found = self._idle.pop() if self._idle else None
            return found or self._connect()
        except BaseException:
            self._free.release()
            raise

    def put_back(self, connection: C) -> None:
        """Keep an idle connection for the next one, or close it."""
        try:
            with self._lock:
                kept = connection.is_idle and len(self._idle) < IDLE_CONNECTIONS
                if kept:
                    self._idle.append(connection)
            if not kept:
                connection.close()
        finally:
            self._free.release()

    @contextmanager
    def opening(self, explain: Explain) -> Iterator[None]:
        """Close it, and tell the meaning of the error, where the block cannot open the database."""
        try:
            yield
        except BaseException as error:
            self.close()
            explained = explain(error, self.place)
            if explained is None:
                raise
            raise explained from error

    def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
        self._release()
