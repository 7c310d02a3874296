"""Events of which nobody knows yet whom they concern.

Where the machine's own name is not known, an event is nobody's. It is asked for anew as soon as
there is such an event (`client/watch.py`), so the rules wait for it, for a while: one for any
machine could else take for good what another says of this machine's own.
"""

from collections.abc import Container, Mapping
from typing import Final

from forewarn.client.event import Event

NAME_SECONDS: Final = 10.0
"""How long the rules wait: the name is asked for within 5 s, then the document. A third of the
shortest notice, which is 30 s."""


class Newcomers:
    """Remembers since when each of them is there."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        self.waiting = False
        """Whether any of them is left alone."""

    def wait(
        self, events: Mapping[str, Event], taken: Container[str], now: float
    ) -> dict[str, float]:
        """Return which events are left alone, and until when.

        Args:
            events: What the document shows, by id.
            taken: The ids of those that a rule has taken.
            now: The monotonic clock's seconds.
        """
        unsure = [
            event_id
            for event_id, event in events.items()
            if event.concerns_me is None and event_id not in taken
        ]
        self._until = {each: self._until.get(each, now + NAME_SECONDS) for each in unsure}
        left = {each: until for each, until in self._until.items() if until > now}
        self.waiting = bool(left)
        return left
