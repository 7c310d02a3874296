"""The values that the rules work on, all frozen.

Names are unique without regard to case: machines and scopes are looked up by their key, the name in
lower case. The values consist of strings, numbers, times and one another, never in a cycle, so the
garbage collector can skip them (`gc=False`): with hundreds of thousands of them it would pause the
service. An event has no status of its own: it has its operation's.
"""

import itertools
import string
import sys
from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from operator import attrgetter
from typing import Annotated, Final, TypeVar

import msgspec

from forewarn import vocabulary
from forewarn.maintenance.accounts import Token
from forewarn.maintenance.units import (
    CONFIRM,
    CheckProgress,
    MaintenanceState,
    TurnPolicy,
    Unit,
    UnitState,
)


class Refused(Exception):  # noqa: N818 - an answer to a request, not an error of the service
    """A request that the rules do not allow; nothing was changed.

    `message` is for people, `facts` has its values by name, for programs.
    """

    def __init__(self, code: vocabulary.ErrorCode, message: str, **facts: str | int) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.facts = facts


def unknown(what: str, *names: str) -> Refused:
    """Return the refusal (NOT_FOUND) of names that no machine, scope, host or token has."""
    where = what if what in {"host", "token", "webhook"} else "fleet"
    message = f"no {what} named {listed([*map(repr, names)])}: see 'forewarn {where} list'"
    return Refused(vocabulary.ErrorCode.NOT_FOUND, message, what=what, name=names[0])


def no_maintenance(number: int) -> Refused:
    """Return the refusal (NOT_FOUND) of a number that no maintenance has."""
    message = f"no maintenance {number}: see 'forewarn maintenance list'"
    return Refused(vocabulary.ErrorCode.NOT_FOUND, message, maintenance=number)


_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


def key(name: str) -> str:
    """Return a name's key: the name with its ASCII letters in lower case.

    A name that has no others is its own key; another key is one interned object.
    """
    lower = name.lower() if name.isascii() else name.translate(_LOWER)
    return name if lower == name else sys.intern(lower)


S = TypeVar("S", bound=msgspec.Struct)


def mapped(shape: type[S], value: msgspec.Struct, **given: object) -> S:
    """Return a shape with the fields given, and all others from the value's of the same names."""
    fields = msgspec.structs.asdict(value)
    fields.update(given)
    return msgspec.convert(fields, shape, from_attributes=True)


class Named(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A value that has a name and is looked up by its key."""

    name: str

    @property
    def key(self) -> str:
        """The name in lower case."""
        return key(self.name)


MAX_TEXT = 256
"""Characters of a tag, a host's name or another text of the fleet file: Azure's limit for tags."""

Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]


class Profile(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A machine's instance metadata beside its place in the fleet; `""` where unknown.

    The fields are those of protocol.md section 1, in the fleet file's spelling.
    """

    azure_environment: Text = "AzurePublicCloud"
    location: Text = ""
    os_type: Text = "Linux"
    vm_size: Text = ""
    zone: Text = ""
    resource_group: Text = ""
    subscription_id: Text = ""
    computer_name: Text = ""
    """The host name inside the machine; the machine's own name where it is empty."""
    mac_address: Text = ""
    public_address: Text = ""
    subnet: Text = ""
    """The subnet of `Machine.address`, as `10.0.0.0/24`."""
    ipv6_address: Text = ""


class Machine(Named, frozen=True, kw_only=True, gc=False):
    """A virtual machine, known by name."""

    scope: str
    """The key of its scope."""
    update_domain: int
    fault_domain: int
    vm_id: str
    """A GUID, lower case: the fleet file's, or one that was generated once."""
    host: str = ""
    """The physical machine below; `""` where unknown."""
    address: str = ""
    """Its source address at the metadata endpoint, as `ipaddress` writes it; `""` for none."""
    listener: str = ""
    """The name of the listener that it asks, where its address is unique; `""` for one without."""
    role: str = ""
    """The cloud service's role that it is an instance of; `""` in other scopes."""
    tags: tuple[tuple[str, str], ...] = ()
    profile: Profile = Profile()


class Sighting(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The facts from a machine's latest requests; they outlive a restart of the service."""

    asked_at: datetime
    """When it last asked for its events, in whole seconds."""
    version: str
    agent: vocabulary.AgentStatus | None = None
    """The latest report of its agent (protocol.md section 10); None without one."""
    reason: str = ""
    """The agent's reason for its status; `""` where it gave none."""


LISTENING = timedelta(minutes=5)
"""A machine that asked this lately listens (protocol.md section 6)."""

Sightings = Callable[[str], Sighting | None]
"""From a machine's key to the facts from its latest requests; None without any. Any thread asks."""


def unseen(machine: str) -> None:
    """Return None, for no machine is known to have asked: the default for `Sightings`."""
    del machine


class Queueing(StrEnum):
    """When maintenance waits for another update domain of its scope (protocol.md section 6)."""

    ANNOUNCEMENT = "announcement"
    """It is not announced: guests prepare when they read an event."""
    START = "start"
    """It is announced and does not start: for guests that prepare at the last moment."""


class Scope(Named, frozen=True, kw_only=True, gc=False):
    """The machines that share one document (protocol.md section 7)."""

    kind: vocabulary.ScopeKind
    update_domains: int
    incarnation: int = 0
    """The number of its document; moves when, and only when, its visible events change."""
    priority: vocabulary.Priority | None = None
    """None for regular, where nobody says so: then guests read no priority, as on Azure."""
    automatically_approve: tuple[vocabulary.EventType, ...] = ()
    """Types that start without notice when a user asks; only Reboot and Redeploy may be."""
    terminate_notice_minutes: int | None = None
    """The notice of a Terminate, 5 to 15; None where a deletion has no event."""
    queue: Queueing | None = None
    """None for the rule of the settings."""
    settle_seconds: int | None = None
    """Time that its update domains stay down after their machines are back; None for the default of
    the settings."""
    asked_at: datetime | None = None
    """When one of its machines last asked, to about a minute; None if none did (protocol.md section
    8)."""


class Approval(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The first approval of an event."""

    kind: vocabulary.ApproverKind
    by: str
    """The machine's name, the operator's, or the scope's for an automatic one."""
    address: str = ""
    at: datetime


class HoldKind(StrEnum):
    """The things that a hold can cover."""

    EVERYTHING = "everything"
    SCOPE = "scope"
    HOST = "host"
    MACHINE = "machine"


class Hold(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An operator's order that blocks maintenance from starting until it ends."""

    kind: HoldKind
    name: str
    """The key of a scope or machine, a host as it is written, `""` for everything."""
    reason: str
    by: str
    at: datetime
    until: datetime | None = None
    """The time at which it ends by itself; None: when somebody releases it."""

    def expired(self, now: datetime) -> bool:
        """Tell whether its time is over."""
        return self.until is not None and self.until <= now

    def __str__(self) -> str:
        """Name what it covers: `scope web`, or `everything`."""
        return f"{self.kind} {self.name}" if self.name else str(self.kind)

    def covers(self, operation: "Operation") -> bool:
        """Tell whether it keeps this operation from starting."""
        scopes = (event.scope for event in operation.events)
        hosts = (*operation.hosts, operation.on_host, operation.to_host)
        return self.touches(scopes, hosts, map(key, operation.machines))

    def touches(self, scopes: Iterable[str], hosts: Iterable[str], machines: Iterable[str]) -> bool:
        """Tell whether it covers maintenance in these scopes, of these machines (keys), or hosts.

        The hosts are those below the machines, and those that they move to.
        """
        if self.kind is HoldKind.EVERYTHING:
            return True
        named = {HoldKind.SCOPE: scopes, HoldKind.HOST: hosts, HoldKind.MACHINE: machines}
        return self.name in named[self.kind]


HOLD_ORDER: Final = attrgetter("at", "kind", "name")
"""Sort key of holds: the oldest first, those of one instant by kind and name."""


class OperationEvent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An operation as one scope sees it: machines of one update domain."""

    id: str
    """An upper-case GUID, the same for its whole life (protocol.md section 4)."""
    scope: str
    """The key of its scope."""
    update_domain: int
    machines: tuple[str, ...]
    """Names as guests read them, in one order for the event's whole life."""
    published: int
    """The scope's incarnation that first showed it; it orders the document."""
    approval: Approval | None = None
    silent: bool = False
    """Its scope was off when it was announced: no guest sees it, and it needs no approval."""

    def is_apart(self, others: Iterable["OperationEvent"]) -> bool:
        """Return True if one of these takes another update domain of its scope."""
        for other in others:
            if other.scope == self.scope and other.update_domain != self.update_domain:
                return True
        return False


AT_ONCE = datetime(1970, 1, 1, tzinfo=UTC)
"""The wakeup of an approved operation: it is due whatever the clock says, even one set back."""


class StartCause(StrEnum):
    """Why an operation was allowed to start."""

    APPROVED = "approved"
    NOTICE_OVER = "notice-over"
    NO_NOTICE = "no-notice"
    """An unforeseen failure."""
    SILENT = "silent"
    """Every scope of it was off: there was nobody to tell."""


class Impact(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The effect of maintenance on its machines, the same for its operations and views."""

    event_type: vocabulary.EventType
    source: vocabulary.EventSource
    description: str
    duration_seconds: int
    """The expected interruption; 0 none, -1 unknown (protocol.md section 4)."""
    target: vocabulary.TargetKind
    """The kind of target that the operator named; with HOST the host itself is maintained."""
    live_migration: bool
    """A Freeze that moves its machines to other hosts."""
    opens_at: datetime | None = None
    """Start of the window: nothing starts before it, approved or not; None for no such limit."""
    closes_at: datetime | None = None
    """End of the window: an operation that has not started by then is cancelled; None for no such
    limit."""


class Operation(Impact, frozen=True, kw_only=True, gc=False):
    """A unit of work that is carried out as one: all of it starts at the same instant."""

    id: str
    """`<maintenance>.<n>`, such as `12.1`."""
    maintenance: int
    status: vocabulary.EventStatus
    announced_at: datetime
    """While it is Queued: the earliest time to announce it, and its place in the queue."""
    not_before: datetime
    """In whole seconds; nothing starts before it without approval."""
    events: tuple[OperationEvent, ...]
    start_cause: StartCause | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    hosts: tuple[str, ...] = ()
    """The known hosts of its machines: where they are, or were when it started."""
    on_host: str = ""
    """The host that maintenance was asked for; `""` where it was not asked for a host."""
    arrived: tuple[str, ...] = ()
    """Machines that came to that host, and keep it from starting: nothing announces them next."""
    dropped: tuple[OperationEvent, ...] = ()
    """Its events whose machines all left that host before it started; no guest sees them."""
    to_host: str = ""
    """Where its machines move to; `""`: the connector chooses."""
    host_boot_id: str = ""
    """Set for a Reboot that lasts as long as its host's own: the host's boot id before it."""
    unit: int | None = None
    """The place of its unit in its maintenance; None where that has no units."""
    held_at: datetime | None = None
    """When a hold began to keep it from being announced, or from starting; None while none does."""
    notice_left_seconds: int = 0
    """The remainder of its notice when it was held; it continues at the release."""
    waits_for: str = ""
    """The operation that must be over before this one is announced, if it is Queued, or starts, if
    it is ready; `""` for none. What is Queued for none is held, or its window lies ahead."""
    outcome: str = ""
    """The connector's last message, or the reason for its cancellation."""
    acknowledged_by: str = ""
    """The operator who acknowledged its failure; `""` while nobody has."""
    attempt: int = 0
    """The fencing number: each claim by an executor raises it."""
    executor: str = ""
    """The replica that claimed it last; `""` while none did."""
    claimed_by: tuple[str, ...] = ()
    """The replicas that claimed it after `repeat_after`, and so may have begun it, in the order of
    their first claims."""
    lease_until: datetime | None = None
    """When the latest claim, by `executor`, expires."""
    outcome_unknown: str = ""
    """Why nobody knows its outcome: it is Started until an operator resolves it; else `""`."""
    repeat_after: int = 0
    """The attempt after which an operator ordered a repetition: what that attempt or an earlier one
    left unknown is done again without asking."""
    carried_out_at: datetime | None = None
    """When the connector reported success."""
    awaited: tuple[str, ...] = ()
    """The machines that keep its update domains down. From the start: those that asked lately, and
    have to ask again after it was carried out. When it is Completed: those whose agents have not
    said `back`. When it has Failed: all, until an operator acknowledges it."""
    reporting: tuple[str, ...] = ()
    """Its machines whose agents report their state, and so have to say `back`."""
    back_by: datetime | None = None
    """When a Returning operation fails."""
    up_at: datetime | None = None
    """When a Completed operation's update domains count as up; None while machines are awaited, and
    afterwards."""

    @property
    def approved(self) -> bool:
        """True if every event that guests see is approved or, where they see none, every event."""
        if len(self.events) == 1:  # most have one, and each decision asks a few times
            return self.events[0].approval is not None
        seen = [event for event in self.events if not event.silent]
        return all(event.approval is not None for event in seen or self.events)

    @property
    def silent(self) -> bool:
        """True if no guest sees any of its events."""
        return all(event.silent for event in self.events)

    @property
    def ordinal(self) -> int:
        """Its number within its maintenance, from 1."""
        return int(self.id.partition(".")[2])

    @property
    def all_events(self) -> tuple[OperationEvent, ...]:
        """Its events, and those whose machines all left its host."""
        return (*self.events, *self.dropped)

    @property
    def machines(self) -> tuple[str, ...]:
        """The names of all its machines, event by event."""
        if len(self.events) == 1:
            return self.events[0].machines
        return tuple(name for event in self.events for name in event.machines)

    @property
    def pending(self) -> bool:
        """True if it is Scheduled."""
        return self.status is vocabulary.EventStatus.SCHEDULED

    @property
    def unstarted(self) -> bool:
        """True if it is Queued or Scheduled."""
        return self.status in _UNSTARTED

    @property
    def down(self) -> bool:
        """True if its update domains count as down."""
        if self.status.over:
            return bool(self.awaited) or self.up_at is not None
        return not self.unstarted

    @property
    def live(self) -> bool:
        """True if something may still follow: it is not over, or its domains are down."""
        return not self.status.over or self.down

    @property
    def shown(self) -> dict[str, tuple[str, datetime | None, tuple[str, ...]]]:
        """Its events as guests see them, by id: the scope, NotBefore until it starts, machines."""
        if not self.status.visible:
            return {}
        at = self.not_before if self.pending else None
        return {e.id: (e.scope, at, e.machines) for e in self.events if not e.silent}

    def moved_from(self, before: "Operation | None") -> list[str]:
        """Return the scopes (keys) whose guests see another value than before; None for none."""
        was, now = {} if before is None else before.shown, self.shown
        both = {**was, **now}
        return [one[0] for event, one in both.items() if was.get(event) != now.get(event)]

    @property
    def gives_way(self) -> bool:
        """True if it is Queued and lets others go first: it is held, or its window lies ahead."""
        return self.status is vocabulary.EventStatus.QUEUED and not self.waits_for

    @property
    def wakeup_at(self) -> datetime | None:
        """The time at which it next acts by itself; None if only something else can make it act.

        What waits for another operation wakes when that one's domains are up, not by time, and what
        waits for machines that came to its host, when they leave. What is Queued wakes when it may
        be announced, and a held one not before its release; but guests read a held NotBefore, which
        then moves on. What has not started wakes when its window closes, at the latest.
        """
        if self.status is vocabulary.EventStatus.RETURNING:
            return self.back_by
        if self.status.over:
            return self.up_at
        if not self.unstarted:
            return None
        at = self._ready_at
        return at if self.closes_at is None else min(at or self.closes_at, self.closes_at)

    @property
    def _ready_at(self) -> datetime | None:
        if self.gives_way:
            return None if self.held_at is not None else self.announced_at
        if not self.pending or self.waits_for or self.arrived:
            return None
        if self.held_at is not None:
            return None if self.silent else self.not_before
        if not self.approved:
            return self.not_before
        return min(self.opens_at or AT_ONCE, self.not_before)

    def ready(self, now: datetime) -> bool:
        """Tell whether its guests let it start: they approved it, or their notice is over.

        An approval does not count before its window opens.
        """
        opened = self.opens_at is None or self.opens_at <= now
        return (self.approved and opened) or self.not_before <= now

    def closed(self, now: datetime) -> bool:
        """Tell whether it is too late for it to start."""
        return self.closes_at is not None and self.closes_at <= now


_UNSTARTED: Final = frozenset((vocabulary.EventStatus.QUEUED, vocabulary.EventStatus.SCHEDULED))


class Verdict(StrEnum):
    """An operator's decision about an operation whose outcome is unknown."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    REPEAT = "repeat"
    """Carry it out again on the machines whose result is unknown."""


class Maintenance(Impact, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """An operator's request: its units take their turns, and each becomes operations."""

    number: int
    targets: tuple[str, ...]
    """The names of the machines, scopes or hosts that were asked for."""
    requested_by: str
    requested_at: datetime
    to_host: str = ""
    """Where its machines move to; `""`: the connector chooses."""
    host_boot_id: str = ""
    """Set for a Reboot that lasts as long as its host's own: the host's boot id before it."""
    without_notice: bool = False
    """The operator accepts that scopes which are off get no event and no notice."""
    units: tuple[Unit, ...] = ()
    """In the order in which they have their turn; empty where all was announced at once."""
    policy: TurnPolicy = TurnPolicy()
    draining: "DrainOptions | None" = None
    """The options for draining the hosts among its units; None where no host is drained."""
    state: MaintenanceState = MaintenanceState.ANNOUNCED
    reason: str = ""
    """Why it is paused, halted or stopped, or the thing that it waits for."""
    wave: int = 0
    """The wave that has its turn, from 0."""
    wave_at: datetime | None = None
    """When the wave before it was over; None for the first, and for one that goes on again."""
    confirmed: bool = False
    check: CheckProgress = CheckProgress()
    changed_by: str = ""
    """The operator who gave the latest order about it."""
    changed_at: datetime | None = None
    """When its state changed last; None if it never did."""
    announced: int = 0
    """The number of operations that it has had: the last one's ordinal."""
    idempotency_key: str = ""
    """The idempotency key of its request: another with it refers to this maintenance."""
    request_digest: str = ""
    """Digest of its request, to detect another request with the same key (`planner.digest`); `""`
    without a key."""

    @property
    def open(self) -> bool:
        """True if something may still happen to one of its units."""
        if not self.state.over:
            return True
        return any(unit.state is UnitState.RUNNING for unit in self.units)

    @property
    def unconfirmed(self) -> bool:
        """True if its wave waits for an operator's confirmation."""
        confirms = self.policy.pause_seconds == CONFIRM and self.wave_at is not None
        return confirms and not self.confirmed and self.state is MaintenanceState.RUNNING


class Tombstone(Named, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A machine that is gone, in case it comes again: after a deletion by its name alone."""

    event_type: vocabulary.EventType | None = None
    """Preempt or Terminate; None where an operator removed it."""
    operation: str = ""
    """The operation that deleted it, if one did."""
    at: datetime
    scope: str
    """The key of the scope that it was in, whose incarnations it may have read."""
    vm_id: str = ""
    address: str = ""
    listener: str = ""


class GuestFacts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A virtual machine that a host has, in the fleet or not."""

    vm_id: str
    """Its GUID, lower case, as in the fleet."""
    name: str
    running: bool
    """True if it has memory on this host: it runs, or is paused."""
    memory_mib: int
    obstacles: tuple[str, ...] = ()
    """Why it cannot be moved while it runs; empty where it can."""


class HostFacts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The facts that a connector found out about a host."""

    answers: bool
    why: str = ""
    """Why it does not answer; `""` where it does."""
    boot_id: str = ""
    """Changes with each boot; `""` where unknown."""
    free_memory_mib: int = 0
    """The memory that is left for further machines."""
    target: bool = True
    """True if the settings let machines move there."""
    can_reboot: bool = False
    guests: tuple[GuestFacts, ...] = ()


class HostState(StrEnum):
    """The progress of a host's drain; the transitions are `host_drain.TRANSITIONS`."""

    UP = "up"
    """It is not drained."""
    DRAINING = "draining"
    EMPTY = "empty"
    """No machine runs on it."""
    REBOOTING = "rebooting"
    BACK = "back"
    RETURNING = "returning"
    """Its machines come home; others may move there too."""
    STUCK = "stuck"
    """It waits for an operator."""


class Stay(StrEnum):
    """The policy of a drain for machines that cannot be moved while they run."""

    REFUSE = "refuse"
    STOP = "stop"
    """They are shut down last, and started when their host has rebooted."""
    REDEPLOY = "redeploy"


class Way(StrEnum):
    """The way in which a machine leaves a host that is drained."""

    LIVE = "live"
    REDEPLOY = "redeploy"
    STOP = "stop"
    """It is shut down until the host has rebooted."""
    SKIP = "skip"
    """An operator looks after it."""
    GONE = "gone"
    """It did not run there any more when the host was looked at."""
    UNDECIDED = "undecided"
    """To be decided at the next look at the host."""


class DrainGuest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A machine that ran on a host when it was drained."""

    name: str
    vm_id: str
    memory_mib: int = 0
    way: Way = Way.UNDECIDED
    to_host: str = ""
    """The host that it moves to; `""` where it does not move."""
    obstacles: tuple[str, ...] = ()
    """Why it cannot be moved while it runs."""
    leaves_by: int = 0
    """The number of the maintenance that takes it away; 0 while none was asked for."""
    returns_by: int = 0
    """The number of the maintenance that brings it home; 0 while none was asked for."""
    visits: bool = False
    """True if the drain of its own host, under way by then, brings it home from wherever it is."""


class DrainOptions(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The options of a drain: for the host, and for its machines."""

    reboot: bool = False
    """True if the host is rebooted once it is empty."""
    bring_home: bool = True
    """True if its machines come home after the reboot."""
    stay: Stay = Stay.REFUSE


class Drain(DrainOptions, frozen=True, kw_only=True, gc=False):
    """The drain of a host, from the request until the host is up again, and after that."""

    host: str
    """As connector and fleet file spell it."""
    state: HostState
    without_notice: bool = False
    """True if machines whose scope is off may be moved without any notice."""
    avoid: tuple[str, ...] = ()
    """Hosts that are drained soon after it, in order: targets only if no other has room."""
    requested_by: str = ""
    requested_at: datetime
    changed_at: datetime
    guests: tuple[DrainGuest, ...] = ()
    boot_id: str = ""
    """The host's when it was drained for a reboot, or when machines were shut down for one; `""`
    until then."""
    reboot_asked_at: datetime | None = None
    """When its reboot command was about to run: it runs at most once after that."""
    booted_at: datetime | None = None
    """When it was seen to have rebooted; None while nothing proves that."""
    silent_since: datetime | None = None
    """Since when the host has not answered; None while it answers."""
    stuck_in: HostState | None = None
    """The state in which it got stuck; None where it is not stuck."""
    reason: str = ""
    """Why it is stuck, or the thing that it waits for."""

    @property
    def goes_on(self) -> bool:
        """True if the drain continues without an operator."""
        return not self.rests and self.state not in {HostState.UP, HostState.STUCK}

    @property
    def rests(self) -> bool:
        """True if the host stays empty until an operator opens it."""
        return self.state is HostState.EMPTY and not self.reboot

    @property
    def closed(self) -> bool:
        """True if no machine may move to the host."""
        return (self.stuck_in or self.state) not in {HostState.UP, HostState.RETURNING}

    @property
    def maintenances(self) -> tuple[int, ...]:
        """The numbers of all maintenances that it has asked for."""
        return tuple(n for guest in self.guests for n in (guest.leaves_by, guest.returns_by) if n)


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of one decision: the store saves them, and the changefeed publishes them."""

    maintenances: tuple[Maintenance, ...] = ()
    operations: tuple[Operation, ...] = ()
    scopes: tuple[Scope, ...] = ()
    machines: tuple[Machine, ...] = ()
    removed_machines: tuple[str, ...] = ()
    """Keys."""
    removed_scopes: tuple[str, ...] = ()
    """Keys."""
    holds: tuple[Hold, ...] = ()
    released: tuple[Hold, ...] = ()
    tombstones: tuple[Tombstone, ...] = ()
    """New ones; their machines are among the removed."""
    revived: tuple[str, ...] = ()
    """Keys of tombstones that go: their machines were added again, or they are too many."""
    drains: tuple[Drain, ...] = ()
    tokens: tuple[Token, ...] = ()
    revoked_tokens: tuple[str, ...] = ()
    """Names."""

    def __bool__(self) -> bool:
        """Return True if anything changed."""
        return any(msgspec.structs.astuple(self))


def listed(names: Collection[str], most: int = 5) -> str:
    """Return the first names and how many more there are, for a message."""
    more = len(names) - most
    return ", ".join(itertools.islice(names, most)) + (f" and {more} more" if more > 0 else "")


class Enablement(StrEnum):
    """When a scope has events at all (protocol.md section 8)."""

    ALWAYS = "always"
    FIRST_REQUEST = "first-request"
    """Off until one of its machines asks, and off again when none has asked for a long time."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The rules that are not in the World: the settings, and permission to start anything."""

    enablement: Enablement = Enablement.ALWAYS
    disable_after: timedelta = timedelta(hours=24)
    """With FIRST_REQUEST: the time without a request after which a scope turns off."""
    queue: Queueing = Queueing.ANNOUNCEMENT
    settle: timedelta = timedelta(0)
    """The time that an update domain stays down after its machines are back."""
    back: timedelta = 2 * LISTENING
    """The time in which a machine has to ask again after its operation was carried out: a machine
    that polls as rarely as one that counts as listening may has as much time again for its boot."""
    host_back: timedelta = timedelta(minutes=30)
    user_initiated_limit: int = 0
    """The most pending events of user-initiated maintenance; 0 for no limit."""
    listening: timedelta = LISTENING
    """A machine that asked within this time before its operation has to ask again after it."""
    starts: bool = True
    """True if anything may start now; otherwise, operations that become ready start later. A
    failure without notice has already happened and enters all the same."""

    def queues(self, scope: Scope) -> bool:
        """Return True if operations that wait for another domain of the scope are not announced."""
        return (scope.queue or self.queue) is Queueing.ANNOUNCEMENT

    def settle_of(self, scope: Scope) -> timedelta:
        """Return the time that a scope's domains stay down after their machines are back."""
        if scope.settle_seconds is None:
            return self.settle
        return timedelta(seconds=scope.settle_seconds)

    def is_on(self, scope: Scope, now: datetime) -> bool:
        """Tell whether the scope's guests see what is announced now."""
        if self.enablement is Enablement.ALWAYS:
            return True
        return scope.asked_at is not None and now - scope.asked_at < self.disable_after
