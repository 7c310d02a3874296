"""Makes once what many windows show: each asks again after each change, and all get the same.

Twenty windows on one list cost the store and the interpreter what one costs, so that guests do not
notice them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Final, TypeVar

T = TypeVar("T")

MAX_KEPT: Final = 100
"""The most answers that are kept: a page of a list each."""


class SharedAnswers:
    """Answers by what was asked for; used on the event loop's thread."""

    def __init__(self) -> None:
        self._made: dict[Hashable, tuple[Hashable, asyncio.Future[Any]]] = {}

    async def get(self, key: Hashable, state: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        """Return what `make` returned for this key in this state; what fails is tried again.

        Args:
            key: What is asked for.
            state: Another value once the answer may be another.
            make: Makes it; not called while an answer of this state is there or on its way.
        """
        known = self._made.get(key)
        if known is None or known[0] != state or _has_failed(known[1]):
            self._made.pop(key, None)
            known = self._made[key] = (state, asyncio.ensure_future(make()))
            while len(self._made) > MAX_KEPT:
                del self._made[next(iter(self._made))]
        answer: T = await asyncio.shield(known[1])
        return answer


def _has_failed(answer: "asyncio.Future[Any]") -> bool:
    return answer.done() and (answer.cancelled() or answer.exception() is not None)
