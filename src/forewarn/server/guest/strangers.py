"""Callers that are no machine, told to the log: seldom, and whatever they do within bounds."""

from typing import Final

import structlog

LOG_SECONDS: Final = 60.0
"""How long an address that was told of is not told of again."""

MAX_ADDRESSES: Final = 256
"""Addresses that are told of within LOG_SECONDS: a guest with a /64 of its own has more addresses
than any memory. What goes over is counted with the rest, and told as a number."""

_log = structlog.get_logger(__name__)


class Strangers:
    """Notes who was turned away for who it is; used on the event loop alone."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, str], float] = {}
        """When each was told of, the oldest first."""
        self._untold = 0

    def note(self, listener: str, address: str, now: float, **facts: str) -> bool:
        """Tell the log of a refused request, unless its address was told of a moment ago.

        Args:
            listener: The listener's name.
            address: Where the request came from.
            now: In seconds that never go back.
            **facts: What else the log says.

        Returns:
            Whether the log was told.
        """
        place = (listener, address)
        while self._told:
            oldest = next(iter(self._told))
            if now - self._told[oldest] < LOG_SECONDS:
                break
            del self._told[oldest]
        if place in self._told or len(self._told) >= MAX_ADDRESSES:
            self._untold += 1
            return False
        self._told[place] = now
        _log.warning(
            "a caller is no registered machine",
            address=address,
            listener=listener,
            untold_before=self._untold,
            **facts,
        )
        self._untold = 0
        return True
