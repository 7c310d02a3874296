"""The client for asyncio: `AsyncClient`, `AsyncWatch` and `AsyncDocuments`.

Each is the client of `sync`, whose waits have a thread each: asyncio's own threads are few, and a
watch waits for minutes. Nothing of the caller's runs in such a thread, `on_trouble` included.
"""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, Generic, Self, TypeVar

from forewarn.client import event, session, sync
from forewarn.client.event import Misuse, Trouble, Unreachable
from forewarn.client.sync import OnTrouble
from forewarn.client.watch_file import SavePath

NO_THREAD_SECONDS: Final = 1.0
"""The pause of a watch before the next try where the system gives no thread, or no file."""

T = TypeVar("T")
R = TypeVar("R")


class AsyncClient:
    """`Client` for asyncio: the same arguments, and the same methods, awaited.

    Each call and each watch that waits has a daemon thread of its own, and none of the loop's. When
    its task is cancelled, the task ends at once, and a moment later the connection and the thread.
    Only the system's look-up of a name cannot be interrupted: a thread named `resolver` waits for
    its end. `on_trouble` runs in the task that waits.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        name: str | None = None,
        pace: session.Pace | None = None,
    ) -> None:
        self._client = sync.Client(endpoint, name=name, pace=pace)

    @property
    def endpoint(self) -> str:
        """The address that the client asks, as a URL; until one has answered, the one to try."""
        return self._client.endpoint

    @property
    def name(self) -> str | None:
        """This machine's name, given or learnt; None while it is not known."""
        return self._client.name

    async def document(self) -> event.Document:
        """Return the current document, as `Client.document`."""
        return await self._run(session.document)

    async def events(self, *, mine: bool = False) -> tuple[event.Event, ...]:
        """Return the current events, as `Client.events`."""
        return sync.listed(await self.document(), mine=mine)

    async def approve(
        self, *events: event.Event | str, within_seconds: float | None = None
    ) -> None:
        """Approve events, which may then start before their notice is over, as `Client.approve`."""
        await self._run(partial(session.approve, events=events, within_seconds=within_seconds))

    async def report(self, status: str, reason: str = "") -> None:
        """Report this machine's state to Forewarn, as `Client.report`."""
        await self._run(partial(session.report, status=status, reason=reason))

    async def machine(self) -> event.MachineIdentity:
        """Return this machine's names and place, as `Client.machine`."""
        return await self._run(session.machine)

    def watch(
        self,
        *,
        since: SavePath | None = None,
        types: Iterable[str] | None = None,
        mine: bool = False,
        on_trouble: OnTrouble | None = None,
    ) -> "AsyncWatch":
        """Return the changes of the events as they happen, as `Client.watch`.

        A task that is cancelled while it waits loses no change: the next wait goes on from there.
        """
        return AsyncWatch(
            self._client.watch(since=since, types=types, mine=mine, on_trouble=on_trouble)
        )

    def documents(
        self, *, known: Iterable[event.Event] = (), on_trouble: OnTrouble | None = None
    ) -> "AsyncDocuments":
        """Return each new document, whole, as `Client.documents`."""
        return AsyncDocuments(self._client.documents(known=known, on_trouble=on_trouble))

    async def close(self) -> None:
        """End every watch and every call at once, and close every connection."""
        self._client.close()

    async def __aenter__(self) -> Self:
        """Return the client."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close it."""
        await self.close()

    async def _run(self, ask: session.Ask[T]) -> T:
        asyncio.get_running_loop()  # elsewhere no call is possible, and not for want of a thread
        with self._client._lent() as connection:
            try:
                call = _Call(lambda: connection.run(ask))
            except RuntimeError as error:
                raise Unreachable(f"no thread to ask in: {error}") from error
            return await call.result(connection.close)


class _AsyncAnswers(AsyncIterator[T]):
    def __init__(self, answers: sync._Answers[T]) -> None:
        self._answers = answers
        self._call: _Call[Any] | None = None
        self._waits = self._interrupted = False

    async def __anext__(self) -> T:
        """Return the next one, however long it takes; stop once closed."""
        await self._wait(self._answers._find)
        while isinstance(found := self._answers._give(), Trouble):
            self._answers._report(found)
            await self._wait(self._answers._find)
        if found is None:
            raise StopAsyncIteration
        return found

    async def _wait(self, do: Callable[[], R]) -> R:
        """Return the result of a function that waits for the endpoint, or for the disk."""
        if self._waits:
            raise Misuse("two tasks at once: give each its own watch")
        self._waits = True
        try:
            call: _Call[R] | None = None
            while call is None:
                try:
                    self._connect_again()
                    self._call = call = _Call(do, self._call)
                except (RuntimeError, Unreachable):  # the system gives no thread or file for now
                    await asyncio.sleep(NO_THREAD_SECONDS)
            return await call.result(self._interrupt)
        finally:
            self._waits = False

    def _connect_again(self) -> None:
        if self._interrupted:
            with contextlib.suppress(Misuse):  # the client is closed, and so is this
                self._answers._connection = self._answers._connect()
            self._interrupted = False

    def _interrupt(self) -> None:
        self._interrupted = not self._answers._connection.closing
        self._answers._connection.close()

    def close(self) -> None:
        """End it at once."""
        self._interrupted = False
        self._answers.close()

    async def __aenter__(self) -> Self:
        """Return it."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close it."""
        self.close()


class AsyncWatch(_AsyncAnswers[event.Change]):
    """Changes as they happen; made by `AsyncClient.watch`."""

    async def done(self) -> None:
        """Save that the last change is done with, as `Watch.done`."""
        if (trouble := await self._wait(self._answers._settle)) is not None:
            self._answers._report(trouble)


class AsyncDocuments(_AsyncAnswers[event.Document]):
    """Documents as they change; made by `AsyncClient.documents`."""

    @property
    def answered_at(self) -> float | None:
        """Time of the last good answer, by the monotonic clock; None before the first."""
        return self._answers._watcher.answered_at

    @property
    def looks(self) -> int:
        """The number of good answers, those without anything new included."""
        return self._answers._watcher.looks


class _Call(threading.Thread, Generic[T]):
    """A thread for one wait; it begins once an earlier one, of a cancelled task, has ended."""

    def __init__(self, do: Callable[[], T], earlier: threading.Thread | None = None) -> None:
        super().__init__(name="forewarn-client", daemon=True)
        self._do = do
        self._earlier = earlier
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._ended: Future[T] = Future()
        self.start()  # now: nobody is to wait for the end of one that the system gave no thread

    def run(self) -> None:
        """Do it, and wake the task that waits."""
        if self._earlier is not None:
            self._earlier.join()
            self._earlier = None
        try:
            self._ended.set_result(self._do())
        except BaseException as error:  # noqa: BLE001 - raised in the task that waits
            self._ended.set_exception(error)
        with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits any more
            self._loop.call_soon_threadsafe(self._over.set)

    async def result(self, stop: Callable[[], None]) -> T:
        """Wait for its end; stop it if the task is cancelled meanwhile."""
        try:
            await self._over.wait()
        except BaseException:
            stop()
            raise
        return self._ended.result()
