"""What turns a scope on: the first request of one of its machines (protocol.md section 8).

Turning on is saved when the request arrives, and the request is answered after that. That a scope
which is on was asked for again is noted in memory and saved at most once a minute a scope, many
scopes in one transaction. A guest never depends on the store: if it is away, or slow, the answer
comes from memory, and the next request tries again.
"""

import asyncio
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

import structlog

from forewarn.clock import Clock
from forewarn.maintenance.model import Policy
from forewarn.server.guest.documents import Documents
from forewarn.store.port import StoreError

SAVE_EVERY: Final = timedelta(minutes=1)
"""How old the time that a scope was asked for gets before it is saved again."""

GATHER_SECONDS: Final = 5.0
"""How long scopes that were asked for are gathered, to be saved together: a fleet of 100,000 scopes
is then twelve transactions a minute. A crash loses no more of a day than this and SAVE_EVERY."""

TURN_ON_SECONDS: Final = 2.0
"""How long a request waits for the store, in real seconds: the least that clients wait for an
answer is 1 s, and most wait longer."""

Save: TypeAlias = "Callable[[Collection[str]], Future[None]]"
"""Saves that machines of these scopes (keys) asked for their events."""

_log = structlog.get_logger(__name__)


class DelayedAnswer(Future[Any]):
    """An answer that is held back so long on purpose; its result is a Reply, or a LongPoll."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()
        self.seconds = seconds


@dataclass(eq=False, repr=False)
class Enabler:
    """Turns scopes on, and notes who asks; made and used on the event loop."""

    documents: Documents
    save_scopes: Save
    policy: Policy
    delay_seconds: float
    """How long the answer that turns a scope on is held back, by the clock."""
    clock: Clock
    loop: asyncio.AbstractEventLoop
    _turning_on: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _noted: set[str] = field(default_factory=set)
    _saving: asyncio.Task[None] | None = None

    def note(self, key: str) -> "asyncio.Task[None] | None":
        """Note that a machine of this scope asks; return None if the scope is on.

        Otherwise the task ends when the request may be answered, whether or not the scope is on.
        """
        if self.is_on(key):
            return None
        turning_on = self._turning_on.get(key)
        if turning_on is None:
            # The plane is asked now, while the request arrives: not at the loop's next turn.
            saved = self.save_scopes((key,))
            turning_on = self.loop.create_task(self._turn_on(key, saved))
            self._turning_on[key] = turning_on
        return turning_on

    def is_on(self, key: str) -> bool:
        """Note that a machine of this scope asks, if the scope is on; return whether it is."""
        scope = self.documents.scope(key)
        now = self.clock.now()
        if scope.asked_at is None or not self.policy.is_on(scope, now):
            return False
        self._note_on(key, scope.asked_at, now)
        return True

    def _note_on(self, key: str, asked_at: datetime, now: datetime) -> None:
        if now - asked_at >= SAVE_EVERY and key not in self._noted:
            self._noted.add(key)
            if self._saving is None or self._saving.done():
                self._saving = self.loop.create_task(self._save())

    async def _turn_on(self, key: str, saved: "Future[None]") -> None:
        try:
            async with asyncio.timeout(TURN_ON_SECONDS):
                await asyncio.shield(asyncio.wrap_future(saved, loop=self.loop))
        except (StoreError, TimeoutError) as error:
            _log.warning("could not turn a scope on; its guests ask again", why=repr(error))
            return
        except Exception:  # noqa: BLE001 - the guest is answered all the same
            _log.exception("could not turn a scope on; its guests ask again")
            return
        finally:
            del self._turning_on[key]
        if self.delay_seconds:
            await self.clock.wait(self.delay_seconds, asyncio.Event())

    async def _save(self) -> None:
        while self._noted:
            await self.clock.wait(GATHER_SECONDS, asyncio.Event())
            noted = tuple(self._noted)
            try:
                await asyncio.wrap_future(self.save_scopes(noted), loop=self.loop)
            except StoreError as error:
                _log.warning("could not save who asked; they ask again", why=str(error))
            except Exception:  # noqa: BLE001 - they ask again
                _log.exception("could not save who asked")
            # Only now: until the documents have learned of it, each request would note it again.
            self._noted.difference_update(noted)
