"""Answers a form that is sent again as it was answered first.

A second click sends a form twice, and so does a browser whose answer was lost and that is asked to
send it again. Each form has a key, made when it was shown. What was answered is remembered by this
process: a maintenance or a rollout has its key in the database too.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from forewarn.control.accounts import OperatorRequest

MAX_REMEMBERED: Final = 1000
"""The most forms whose answers are remembered: a second click follows within seconds."""


class SentForms:
    """Answers a form that is sent again as it was answered first; used on the event loop."""

    def __init__(self) -> None:
        self._answers: dict[tuple[str, str], asyncio.Future[str]] = {}

    async def once(
        self, caller: OperatorRequest, key: str, act: Callable[[], Awaitable[str]]
    ) -> str:
        """Act, unless this caller's form with this key was sent before; return where that led.

        What was refused may be sent again with the same key, when it has been corrected.
        """
        if not key:
            return await act()
        place = (caller.by, key)
        known = self._answers.get(place)
        if known is None:
            known = self._answers[place] = asyncio.ensure_future(act())
            while len(self._answers) > MAX_REMEMBERED:
                del self._answers[next(iter(self._answers))]
        else:
            caller.recorded = True  # the first one is in the audit log
        try:
            return await asyncio.shield(known)
        except Exception:
            if self._answers.get(place) is known:
                del self._answers[place]
            raise
