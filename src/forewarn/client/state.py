"""What a watch knows, as values and as the JSON of `since=`.

WatchState      the events that are known, and the changes that the caller has not taken yet
PendingChange   one change of one event, and what is known of the event afterwards
"""

from typing import Final, Literal, TypeAlias

import msgspec

from forewarn.client import event, responses
from forewarn.client.errors import Misuse
from forewarn.client.responses import ClockReading
from forewarn.protocol import tolerant

FORMAT: Final = 1
"""Of the JSON; another one is refused."""

MAX_LENGTH: Final = 32 * 1024 * 1024
"""Characters of a state: the largest document makes no longer one."""

ChangeKind: TypeAlias = Literal["appeared", "started", "updated", "gone", ""]
"""What the caller is told; `""` for a change that nobody is told."""


class KnownEvent(msgspec.Struct, frozen=True):
    """What is known of one event."""

    event: event.Event
    told: bool
    """Whether its appearance was told: otherwise its end is not told either."""
    started: bool
    """Whether its start was told."""
    missing: bool = False
    """Whether the last document did not list it: the next one confirms its end."""


class PendingChange(msgspec.Struct, frozen=True):
    """One change of one event."""

    key: str
    kind: ChangeKind
    after: KnownEvent | None
    """What is known of the event afterwards; None once it is gone."""


class WatchState(msgspec.Struct, kw_only=True):
    """All that a watch knows, between one change and the next."""

    format: int = FORMAT
    known: dict[str, KnownEvent] = {}
    """By the EventId in upper case, in the order of appearance."""
    pending: list[PendingChange] = []
    """Changes to tell, in order."""

    def take(self) -> tuple[PendingChange, KnownEvent | None] | None:
        """Apply the next change; return it with what was known before, None if there is none."""
        if not self.pending:
            return None
        change = self.pending.pop(0)
        before = self.known.get(change.key)
        if change.after is not None:
            self.known[change.key] = change.after
        else:
            del self.known[change.key]
        return change, before


def write(state: WatchState) -> str:
    """Return a state as JSON, without times of this process's monotonic clock."""
    kept = WatchState(
        known={key: _kept(known) for key, known in state.known.items()},
        pending=[
            msgspec.structs.replace(each, after=each.after and _kept(each.after))
            for each in state.pending
        ],
    )
    return msgspec.json.encode(kept).decode()


def _kept(known: KnownEvent) -> KnownEvent:
    bare = msgspec.structs.replace(known.event, starts_by=None)
    return msgspec.structs.replace(known, event=bare)


def read(written: str, at: ClockReading) -> WatchState:
    """Read what `write` wrote, in this process or in another.

    Args:
        written: The JSON.
        at: Now, to put each NotBefore on the monotonic clock.

    Raises:
        Misuse: It is not such JSON, or another release wrote it.
    """
    try:
        state = msgspec.json.decode(written[: MAX_LENGTH + 1], type=WatchState)
    except (ValueError, RecursionError) as error:  # msgspec's own errors are ValueErrors
        raise _invalid(str(error)) from error
    _check(state)
    state.known = {key: _found(known, at) for key, known in state.known.items()}
    state.pending = [
        msgspec.structs.replace(each, after=each.after and _found(each.after, at))
        for each in state.pending
    ]
    return state


def _invalid(why: str) -> Misuse:
    return Misuse(f"invalid since= value ({why}): watch without it")


def _check(state: WatchState) -> None:
    """Refuse another release's state, and changes that do not follow from one another."""
    if state.format != FORMAT:
        raise _invalid(f"its format is {state.format}, and this release reads {FORMAT}")
    told = {key: known.told for key, known in state.known.items()}
    for change in state.pending:
        follows = {
            "appeared": not told.get(change.key) and change.after is not None,
            "started": told.get(change.key) and change.after is not None,
            "updated": told.get(change.key) and change.after is not None,
            "gone": told.get(change.key) and change.after is None,
            "": change.key in told or change.after is not None,
        }
        if not follows[change.kind]:
            raise _invalid(f"its change {change.kind!r} of {change.key} does not follow")
        if change.after is not None:
            told[change.key] = change.after.told
        else:
            del told[change.key]


def _found(known: KnownEvent, at: ClockReading) -> KnownEvent:
    found = msgspec.structs.replace(
        known.event,
        status=tolerant.status(known.event.status),  # JSON has the words as mere text
        event_type=tolerant.event_type(known.event.event_type),
        source=tolerant.source(known.event.source),
        starts_by=responses.starts_by(known.event.not_before, at),
    )
    return msgspec.structs.replace(known, event=found)
