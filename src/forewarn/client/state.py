"""What a watch knows, as values and as the JSON that `since=` takes.

State    events that are known, steps that are not yet told
Step     one thing that happens to one event, and what is known of it afterwards
"""

from typing import Final, Literal, TypeAlias

import msgspec

from forewarn.client import answers, event
from forewarn.client.errors import Misuse
from forewarn.client.pace import Moment
from forewarn.protocol import tolerant

FORMAT: Final = 1
"""Of the JSON; another one is refused."""

MAX_LENGTH: Final = 32 * 1024 * 1024
"""Characters of a state: what the largest document can make it."""

Kind: TypeAlias = Literal["appeared", "started", "updated", "gone", ""]
"""What is told of a step; `""` for what changes without a word."""


class Known(msgspec.Struct, frozen=True):
    """What is known of one event."""

    event: event.Event
    told: bool
    """Whether its appearance was told: what was not is never told the end of."""
    started: bool
    """Whether its start was told."""
    missing: bool = False
    """Whether the last document did not list it: the next one confirms its end."""


class Step(msgspec.Struct, frozen=True):
    """One thing that happens to one event."""

    key: str
    kind: Kind
    after: Known | None
    """What is known of the event afterwards; None once it is over."""


class State(msgspec.Struct, kw_only=True):
    """All that a watch knows, between one change and the next."""

    format: int = FORMAT
    known: dict[str, Known] = {}
    """By the id that ids are compared by, in the order of appearance."""
    steps: list[Step] = []
    """What is still to be told, in order."""

    def take(self) -> tuple[Step, Known | None] | None:
        """Do the next step; return it and what was known before, None if there is no step."""
        if not self.steps:
            return None
        step = self.steps.pop(0)
        before = self.known.get(step.key)
        if step.after is not None:
            self.known[step.key] = step.after
        else:
            del self.known[step.key]
        return step, before


def write(state: State) -> str:
    """Return a state as JSON."""
    return msgspec.json.encode(
        State(
            known={key: _kept(known) for key, known in state.known.items()},
            steps=[
                msgspec.structs.replace(step, after=step.after and _kept(step.after))
                for step in state.steps
            ],
        )
    ).decode()


def _kept(known: Known) -> Known:
    """Return it without what counts in this process only: the monotonic clock's time."""
    return msgspec.structs.replace(
        known, event=msgspec.structs.replace(known.event, starts_by=None)
    )


def read(written: str, moment: Moment) -> State:
    """Read what `write` wrote, in this process or in another.

    Args:
        written: The JSON.
        moment: Now, from which a NotBefore finds its place on the monotonic clock.

    Raises:
        Misuse: It is no such JSON, or another release's.
    """
    try:
        state = msgspec.json.decode(written[: MAX_LENGTH + 1], type=State)
    except (ValueError, RecursionError) as error:  # msgspec's own errors are ValueErrors
        raise _no_state(str(error)) from error
    _check(state)
    state.known = {key: _found(known, moment) for key, known in state.known.items()}
    state.steps = [
        msgspec.structs.replace(step, after=step.after and _found(step.after, moment))
        for step in state.steps
    ]
    return state


def _no_state(why: str) -> Misuse:
    return Misuse(f"since= is no state that a watch wrote ({why}): watch without it")


def _check(state: State) -> None:
    """Refuse another release's state, and steps that do not follow from one another."""
    if state.format != FORMAT:
        raise _no_state(f"its format is {state.format}, and this release reads {FORMAT}")
    told = {key: known.told for key, known in state.known.items()}
    for step in state.steps:
        follows = {
            "appeared": not told.get(step.key) and step.after is not None,
            "started": told.get(step.key) and step.after is not None,
            "updated": told.get(step.key) and step.after is not None,
            "gone": told.get(step.key) and step.after is None,
            "": step.key in told or step.after is not None,
        }
        if not follows[step.kind]:
            raise _no_state(f"its step {step.kind!r} of {step.key} does not follow")
        if step.after is not None:
            told[step.key] = step.after.told
        else:
            del told[step.key]


def _found(known: Known, moment: Moment) -> Known:
    found = msgspec.structs.replace(
        known.event,
        status=tolerant.status(known.event.status),  # JSON has the words as mere text
        event_type=tolerant.event_type(known.event.event_type),
        source=tolerant.source(known.event.source),
        starts_by=answers.starts_by(known.event.not_before, moment),
    )
    return msgspec.structs.replace(known, event=found)
