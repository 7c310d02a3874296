"""Both shells behind one face, so that one suite tests both."""

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Protocol, TypeVar

import patience
from forewarn.client import aio, sync
from forewarn.client.event import Change, Document, Event, Machine
from forewarn.client.session import Pace

T = TypeVar("T")

QUICK = Pace(
    first_answer_seconds=2 * patience.SECONDS,
    answer_seconds=2 * patience.SECONDS,
    connect_seconds=patience.SECONDS,
    poll_seconds=0.02,
    wait_seconds=1,
    backoff_seconds=0.01,
    longest_backoff_seconds=0.05,
    longest_retry_after_seconds=0.05,
    approve_seconds=patience.SECONDS,
)
"""A client's pauses, made short. It waits for an answer for longer than a test waits for it."""


class Shell(Protocol):
    """A client of either kind, as a test calls it; a watch is read from any thread."""

    def document(self) -> Document: ...
    def events(self, *, mine: bool = False) -> tuple[Event, ...]: ...
    def approve(self, *events: Event | str, within_seconds: float | None = None) -> None: ...
    def machine(self) -> Machine: ...
    def report(self, status: str, reason: str = "") -> None: ...
    def watch(self, **wanted: Any) -> "Watching": ...
    def documents(self, **wanted: Any) -> "Following": ...
    def close(self) -> None: ...


class Following(Iterator[Document], Protocol):
    def close(self) -> None: ...


class Watching(Iterator[Change], Protocol):
    def done(self) -> Any: ...
    def close(self) -> None: ...


class Awaited:
    """AsyncClient on a loop in a thread of its own, called as if it were Client."""

    def __init__(self, endpoint: str, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._client = aio.AsyncClient(endpoint, **options)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.begin(coroutine).result(patience.SECONDS)

    def begin(self, coroutine: Coroutine[Any, Any, T]) -> "concurrent.futures.Future[T]":
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def document(self) -> Document:
        return self.run(self._client.document())

    def events(self, *, mine: bool = False) -> tuple[Event, ...]:
        return self.run(self._client.events(mine=mine))

    def approve(self, *events: Event | str, within_seconds: float | None = None) -> None:
        self.run(self._client.approve(*events, within_seconds=within_seconds))

    def machine(self) -> Machine:
        return self.run(self._client.machine())

    def report(self, status: str, reason: str = "") -> None:
        self.run(self._client.report(status, reason))

    def watch(self, **wanted: Any) -> "AwaitedWatch":
        async def make() -> aio.AsyncWatch:
            return self._client.watch(**wanted)

        return AwaitedWatch(self, self.run(make()))

    def documents(self, **wanted: Any) -> "AwaitedDocuments":
        async def make() -> aio.AsyncDocuments:
            return self._client.documents(**wanted)

        return AwaitedDocuments(self, self.run(make()))

    def close(self) -> None:
        self.run(self._client.close())

    def next_of(self, answers: AsyncIterator[T]) -> T:
        async def following() -> T | None:
            return await anext(answers, None)

        found = self.run(following())
        if found is None:
            raise StopIteration
        return found

    def close_it(self, answers: aio.AsyncWatch | aio.AsyncDocuments) -> None:
        async def close() -> None:
            answers.close()

        self.run(close())

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(patience.SECONDS)
        self._loop.close()


class AwaitedWatch(Iterator[Change]):
    def __init__(self, shell: Awaited, watch: aio.AsyncWatch) -> None:
        self._shell = shell
        self._watch = watch

    def done(self) -> None:
        self._shell.run(self._watch.done())

    def __next__(self) -> Change:
        return self._shell.next_of(self._watch)

    def close(self) -> None:
        self._shell.close_it(self._watch)


class AwaitedDocuments(Iterator[Document]):
    def __init__(self, shell: Awaited, documents: aio.AsyncDocuments) -> None:
        self._shell = shell
        self._documents = documents

    def __next__(self) -> Document:
        return self._shell.next_of(self._documents)

    def close(self) -> None:
        self._shell.close_it(self._documents)


SHELLS: dict[str, Callable[..., Shell]] = {"sync": sync.Client, "asyncio": Awaited}
