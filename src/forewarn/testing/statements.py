"""What the lines of a scenario say, as values."""

from datetime import timedelta

import msgspec

from forewarn.maintenance import fleet
from forewarn.maintenance.alerts import AlertKind
from forewarn.maintenance.model import HoldKind, RollingState, StartCause
from forewarn.vocabulary import EventSource, EventStatus, EventType


class Schedules(msgspec.Struct, frozen=True, kw_only=True):
    """An operator asks for maintenance, or a failure strikes."""

    by: str
    event_type: EventType
    machines: tuple[str, ...] = ()
    scope: str = ""
    host: str = ""
    source: EventSource = EventSource.PLATFORM
    not_before: timedelta | None = None
    """From the scenario's beginning."""
    duration_seconds: int = -1
    no_notice: bool = False
    without_notice: bool = False


class OperatorSays(msgspec.Struct, frozen=True, kw_only=True):
    """An operator cancels, approves, notes, resumes or postpones what a reference means."""

    by: str
    verb: str
    reference: str
    reason: str = ""
    to: timedelta = timedelta()
    """Where it postpones to, from the scenario's beginning."""


class Holds(msgspec.Struct, frozen=True, kw_only=True):
    """An operator holds or releases."""

    by: str
    kind: HoldKind
    name: str
    reason: str
    release: bool


class Removes(msgspec.Struct, frozen=True):
    """An operator takes machines out of the fleet."""

    machines: tuple[str, ...]


class Applies(msgspec.Struct, frozen=True):
    """An operator applies another fleet."""

    wanted: fleet.Fleet
    prune: bool


class Approves(msgspec.Struct, frozen=True):
    """A guest approves what it reads, or the events of these operations."""

    machine: str
    operations: tuple[str, ...]


class Asks(msgspec.Struct, frozen=True):
    """A guest asks for its events, and its scope is on from then on."""

    machine: str


class Ends(msgspec.Struct, frozen=True, kw_only=True):
    """The connector reports how an operation ended."""

    operation: str
    succeeded: bool
    message: str
    attempt: int | None
    """None for the attempt that it was last asked to make."""


class Killed(msgspec.Struct, frozen=True):
    """The server is gone, at once or in the midst of the next commit."""

    in_commit: bool


class Starts(msgspec.Struct, frozen=True):
    """The server starts again, from what was committed."""


class Jumps(msgspec.Struct, frozen=True):
    """The wall clock is set, and no time passes."""

    by: timedelta


class Trusts(msgspec.Struct, frozen=True):
    """An operator says that the wall clock is right."""


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """An event as a guest is expected to read it."""

    event_type: EventType
    status: EventStatus
    machines: tuple[str, ...]
    not_before: timedelta | None
    """From the scenario's beginning; None where the line does not say."""


class Sees(msgspec.Struct, frozen=True, kw_only=True):
    """A guest's whole document is this."""

    machine: str
    version: str
    events: tuple[Shown, ...]


class Is(msgspec.Struct, frozen=True, kw_only=True):
    """An operation is so."""

    operation: str
    status: EventStatus | None
    """None: there is no such operation."""
    because: StartCause | None = None
    waits_for: str = ""
    held: bool = False
    since: timedelta | None = None
    not_before: timedelta | None = None


class Incarnation(msgspec.Struct, frozen=True):
    """A scope's document has this number."""

    scope: str
    number: int


class Walks(msgspec.Struct, frozen=True):
    """The walks of a maintenance are all so."""

    maintenance: int
    state: RollingState


class Attention(msgspec.Struct, frozen=True):
    """The attention list is this, in any order."""

    items: tuple[tuple[AlertKind, str], ...]


class Fleets(msgspec.Struct, frozen=True):
    """A machine is on this host; or, with None, not in the fleet."""

    machine: str
    host: str | None


Statement = (
    Schedules
    | OperatorSays
    | Holds
    | Removes
    | Applies
    | Approves
    | Asks
    | Ends
    | Killed
    | Starts
    | Jumps
    | Trusts
    | Sees
    | Is
    | Incarnation
    | Walks
    | Attention
    | Fleets
)
