"""What changed, told to whoever listens, after the commit and in its order."""

import asyncio
from collections.abc import Callable

import structlog

from forewarn.maintenance.model import Changes

Listener = Callable[[Changes], None]

_log = structlog.get_logger(__name__)


class Changefeed:
    """Tells changes to listeners on the writer's thread, before the requests are answered.

    So whoever has an answer finds its effect in every listener's memory that shares the
    answer's thread or loop.
    """

    def __init__(self) -> None:
        self._listeners: list[Listener] = []

    def subscribe(self, listener: Listener) -> None:
        """Call `listener` with every change from now on, on the thread that publishes."""
        self._listeners.append(listener)

    def subscribe_on_loop(self, loop: asyncio.AbstractEventLoop, listener: Listener) -> None:
        """Call `listener` with every change from now on, on this loop's thread."""
        self.subscribe(lambda changes: _hand_over(loop, listener, changes))

    def publish(self, changes: Changes) -> None:
        """Tell every listener; one that raises is logged and does not keep it from the others."""
        for listener in self._listeners:
            try:
                listener(changes)
            except Exception:  # noqa: BLE001 - the other listeners still hear
                _log.exception("a listener of the feed failed")


def _hand_over(loop: asyncio.AbstractEventLoop, listener: Listener, changes: Changes) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(listener, changes)
