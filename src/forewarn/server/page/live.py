"""Live updates of open pages: notice of changes, and answers that many pages share.

A page that is notified of a change loads its content again. Changes within half a second are one
notice, the same for all pages, so that a busy fleet costs each page two requests a second at most.
Twenty windows on one list cost the store and the interpreter the same as one, so that guests do not
notice them.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from typing import Any, Final, TypeVar

from forewarn.clock import Clock
from forewarn.maintenance.model import Changes
from forewarn.server.page import rendering

T = TypeVar("T")

JOIN_SECONDS: Final = 0.5
"""The time after a change within which further changes are part of the same notice."""

TICK_SECONDS: Final = 15.0
"""The interval of notices without a change: machines fall silent, and the time of day goes on. It
also shows both ends that the other is there."""

MAX_KEPT: Final = 100
"""The most answers that are kept: a page of a list each."""


class Live:
    """The open pages of this process; used on the event loop's thread."""

    def __init__(self, clock: Clock, real: Clock, process: str) -> None:
        self._clock = clock
        self._real = real
        self._process = process
        self._count = 0
        self._announced = self.state
        self.followers = 0
        """The number of open pages."""
        self._told = asyncio.Event()
        self._soon: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    @property
    def state(self) -> str:
        """A text that differs after each change: a page sends the one that it shows."""
        return f"{self._process}-{self._count}"

    def learn(self, changes: Changes) -> None:
        """Tell the pages soon."""
        del changes
        self._count += 1
        if self._soon is None:
            self._soon = asyncio.get_running_loop().create_task(self._tell_soon())

    def close(self) -> None:
        """End every stream."""
        self._closing.set()
        self._tell()

    async def stream(
        self, shown: str, *, is_valid: Callable[[], bool] = lambda: True
    ) -> AsyncIterator[bytes]:
        """Yield what a page reads that shows this state, while its token is valid."""
        yield b": open\n\n"
        while not self._closing.is_set() and is_valid():
            if shown == self._announced:
                await self._real.wait(TICK_SECONDS, self._told)
            shown = self._announced
            if not self._closing.is_set() and is_valid():
                millis = rendering.millis(self._clock.now())
                yield b"event: changed\ndata: %d\n\n" % millis

    async def _tell_soon(self) -> None:
        await self._real.wait(JOIN_SECONDS, self._closing)
        self._soon = None
        self._tell()

    def _tell(self) -> None:
        self._announced = self.state
        self._told.set()
        self._told = asyncio.Event()


class SharedAnswers:
    """Answers by what was asked for; used on the event loop's thread."""

    def __init__(self) -> None:
        self._made: dict[Hashable, tuple[Hashable, asyncio.Future[Any]]] = {}

    async def get(self, key: Hashable, state: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        """Return the answer that `make` made for this key and state; after a failure, try again.

        The caller passes another state once the answer may differ. Until then `make` is not called
        again while an answer is there or on its way.
        """
        known = self._made.get(key)
        if known is None or known[0] != state or _has_failed(known[1]):
            # Those of another state are not asked for again, and one may be a whole maintenance.
            kept = {k: one for k, one in self._made.items() if one[0] == state and k != key}
            known = kept[key] = (state, asyncio.ensure_future(make()))
            self._made = kept
            while len(self._made) > MAX_KEPT:
                del self._made[next(iter(self._made))]
        answer: T = await asyncio.shield(known[1])
        return answer


def _has_failed(answer: "asyncio.Future[Any]") -> bool:
    return answer.done() and (answer.cancelled() or answer.exception() is not None)
