"""The values that the rules speak of, all frozen.

Machines and scopes are referred to by their key, the name in lower case: names are unique
without regard to case. What people and guests read is the name as it was written.

They are made of texts, numbers, times and one another, never in a circle, so the garbage collector
need not look at them (`gc=False`): a service that keeps hundreds of thousands of them would stop
for that.

An event has no status of its own. An operation is atomic, so its status is the status of each
of its events, and the two cannot disagree.
"""

from datetime import datetime, timedelta
from enum import StrEnum

import msgspec

from forewarn.vocabulary import (
    ApproverKind,
    ErrorCode,
    EventSource,
    EventStatus,
    EventType,
    Priority,
    ScopeKind,
)


class Refused(Exception):  # noqa: N818 - it is a refusal, the field's word, and no fault of ours
    """A request that the rules do not allow; nothing was changed.

    Args:
        code: The reason, from the closed list.
        message: What is wrong, what was expected, and what to do, for people.
        facts: What the message speaks of, by name, for programs.
    """

    def __init__(self, code: ErrorCode, message: str, **facts: str | int) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.facts = facts


def key(name: str) -> str:
    """Return what a name is compared and looked up by: itself in lower case."""
    return name.lower()


class Profile(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a machine's instance tree says beside its place in the fleet; `""` where unknown.

    The names are those of the instance metadata (protocol.md section 1) in the fleet file's
    spelling.
    """

    azure_environment: str = "AzurePublicCloud"
    location: str = ""
    os_type: str = "Linux"
    vm_size: str = ""
    zone: str = ""
    resource_group: str = ""
    subscription_id: str = ""
    computer_name: str = ""
    """The host name inside the machine; the machine's own name where it is empty."""
    mac_address: str = ""
    public_address: str = ""
    subnet: str = ""
    """The subnet of `Machine.address`, as `10.0.0.0/24`."""
    ipv6_address: str = ""


class Machine(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A virtual machine, known by name."""

    name: str
    scope: str
    """The key of its scope."""
    update_domain: int
    fault_domain: int
    vm_id: str
    """A GUID of its own, lower case: the fleet file's, or one that was given once."""
    host: str = ""
    """The physical machine below; `""` where unknown."""
    address: str = ""
    """Its source address at the metadata endpoint, as `ipaddress` writes it; `""` for none."""
    listener: str = ""
    """The name of the listener that it asks at: addresses are unique for each; `""` for those that
    have no name."""
    role: str = ""
    """The cloud service's role that it is an instance of; `""` elsewhere."""
    tags: tuple[tuple[str, str], ...] = ()
    profile: Profile = Profile()

    @property
    def key(self) -> str:
        """Return what it is referred to by."""
        return key(self.name)


class Scope(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The machines that share one document (protocol.md section 7)."""

    name: str
    kind: ScopeKind
    update_domains: int
    """How many update domains it has, 1 to 20."""
    incarnation: int = 0
    """The number of its document; moves when, and only when, its visible events change."""
    priority: Priority = Priority.REGULAR
    automatically_approve: tuple[EventType, ...] = ()
    """Types that start without notice when a user asks: Reboot and Redeploy at most."""
    terminate_notice_minutes: int | None = None
    """The notice of a Terminate, 5 to 15; None where a deletion has no event."""
    asked_at: datetime | None = None
    """When one of its machines last asked for events, as far as that was written down; None if
    none ever did. Whether the scope is on follows from it (protocol.md section 8)."""

    @property
    def key(self) -> str:
        """Return what it is referred to by."""
        return key(self.name)


class Approval(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The first word that let an event start."""

    kind: ApproverKind
    by: str
    """The machine's name, the operator's, or the scope's for an automatic one."""
    address: str = ""
    """Where the word came from; `""` where there is no address."""
    at: datetime


class HoldKind(StrEnum):
    """What a hold covers."""

    EVERYTHING = "everything"
    SCOPE = "scope"
    HOST = "host"
    MACHINE = "machine"


class Hold(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An operator's word that nothing of this starts until it is released."""

    kind: HoldKind
    name: str
    """The key of the scope or machine, the host as it is written; `""` for everything."""
    reason: str
    by: str
    at: datetime


class AuditAction(StrEnum):
    """What an operator did with what was under way."""

    HOLD = "hold"
    RELEASE = "release"
    POSTPONE = "postpone"
    RESUME = "resume"
    REPEAT = "repeat"
    """Let what was in doubt be carried out again."""


class Intervention(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An operator's word that changed the course of an operation or a maintenance."""

    action: AuditAction
    by: str
    at: datetime
    detail: str = ""
    """What was held or released and why, or until when it was postponed."""


MAX_INTERVENTIONS = 20
"""The most that are kept of one operation or maintenance, the latest: more is a script's doing."""


def intervened(
    before: tuple[Intervention, ...], action: AuditAction, by: str, at: datetime, detail: str = ""
) -> tuple[Intervention, ...]:
    """Return the interventions with one more."""
    return (*before, Intervention(action=action, by=by, at=at, detail=detail))[-MAX_INTERVENTIONS:]


class Event(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What an operation shows in one scope: machines of one update domain."""

    id: str
    """An upper-case GUID, the same for its whole life (protocol.md section 4)."""
    scope: str
    """The key of its scope."""
    update_domain: int
    machines: tuple[str, ...]
    """Names as guests read them; one order for the event's whole life."""
    published: int
    """The scope's incarnation that first showed it: what the document is ordered by."""
    approval: Approval | None = None
    silent: bool = False
    """Its scope was off when it was made: no guest sees it, and it needs no approval."""


class StartCause(StrEnum):
    """Why an operation was allowed to start."""

    APPROVED = "approved"
    NOTICE_OVER = "notice-over"
    NO_NOTICE = "no-notice"
    """An unforeseen failure."""
    SILENT = "silent"
    """Every scope of it was off: there was nobody to be told."""


class Operation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is carried out as one: all of it starts at one instant."""

    id: str
    """`<maintenance>.<n>`, such as `12.1`."""
    maintenance: int
    event_type: EventType
    source: EventSource
    description: str
    duration_seconds: int
    """The expected interruption; 0 none, -1 unknown (protocol.md section 4)."""
    status: EventStatus
    announced_at: datetime
    not_before: datetime
    """In whole seconds; nothing starts before it without approval."""
    events: tuple[Event, ...]
    start_cause: StartCause | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    hosts: tuple[str, ...] = ()
    """The hosts that its machines were on when it was announced, as far as they are known."""
    rolling_update: int | None = None
    """Which of its maintenance's walks it is a step of; None where there is nothing to walk."""
    held_at: datetime | None = None
    """Since when a hold keeps it from starting; None while none does."""
    notice_left_seconds: int = 0
    """What was left of its notice when it was held; it begins again with the release."""
    waits_for: str = ""
    """The operation that must end before this one may start, once it is ready; `""` for none."""
    outcome: str = ""
    """What the connector said at its end, or why it was cancelled."""
    acknowledged_by: str = ""
    """The operator who took note of its failure; `""` while nobody has."""
    attempt: int = 0
    """The fencing number: each claim by an executor raises it."""
    executor: str = ""
    """Who claimed it last."""
    lease_until: datetime | None = None
    """When that claim is void."""
    outcome_unknown: str = ""
    """Why nobody knows whether it was carried out: it stays Started until an operator says; `""`
    where there is no doubt."""
    repeat_after: int = 0
    """The attempt after which an operator said that it is to be repeated: what that attempt, or one
    before it, left in doubt is done again without asking."""
    interventions: tuple[Intervention, ...] = ()
    """What operators did with it, the first first; approvals, cancels and notes have fields of
    their own."""

    @property
    def approved(self) -> bool:
        """Whether it may start before NotBefore.

        Every event that guests see is approved; where they see none, an operator approved them all.
        """
        approvals = [event.approval for event in self.events if not event.silent]
        approvals = approvals or [event.approval for event in self.events]
        return all(approval is not None for approval in approvals)

    @property
    def silent(self) -> bool:
        """Whether no guest sees anything of it."""
        return all(event.silent for event in self.events)

    @property
    def machines(self) -> tuple[str, ...]:
        """Return the names of all its machines, event by event."""
        return tuple(name for event in self.events for name in event.machines)


class Verdict(StrEnum):
    """What an operator says of an operation in doubt."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    REPEAT = "repeat"
    """It is to be carried out again, as far as nobody knows that it was."""


class RollingState(StrEnum):
    """How a walk stands."""

    RUNNING = "running"
    PAUSED = "paused"
    """A step did not end well: an operator resumes or cancels it."""
    FINISHED = "finished"


class RollingUpdate(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A scope, or a host, taken one update domain after another.

    The next step is found when it is announced, in the fleet as it is then.
    """

    scope: str = ""
    """The key of the scope that is walked; `""` where a host is."""
    host: str = ""
    machines: tuple[str, ...] = ()
    """Keys; empty for all that there are when a step is announced."""
    done: tuple[str, ...] = ()
    """The keys of machines that had their turn."""
    state: RollingState = RollingState.RUNNING
    reason: str = ""
    """Why it stopped."""


class Maintenance(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What an operator asked for; it became one or more operations."""

    number: int
    event_type: EventType
    source: EventSource
    targets: tuple[str, ...]
    """The machines' names, or the one scope's, as they were asked for."""
    requested_by: str
    requested_at: datetime
    description: str
    duration_seconds: int
    without_notice: bool = False
    """The operator accepts that scopes which are off get no event and no notice."""
    rolling_updates: tuple[RollingUpdate, ...] = ()
    """Only for what takes more than one step."""
    announced: int = 0
    """How many operations it has had so far: the last one's ordinal."""
    interventions: tuple[Intervention, ...] = ()
    """What operators did with its walks, the first first."""

    @property
    def open(self) -> bool:
        """Whether a step of it is still to be announced, or an operator must say so."""
        return any(walk.state is not RollingState.FINISHED for walk in self.rolling_updates)


class Lost(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A machine that was preempted or terminated: gone from the fleet, and remembered."""

    name: str
    event_type: EventType
    operation: str
    at: datetime

    @property
    def key(self) -> str:
        """Return what it is referred to by."""
        return key(self.name)


class Parting(msgspec.Struct, frozen=True, array_like=True):
    """What a machine that was removed may have read last."""

    scope: str
    """Its scope, by key."""
    incarnation: int
    """That scope's, when the machine was removed."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All that a decision may look at.

    It holds every scope that the cause touches, every live operation of those scopes, and the
    machines of a walk that goes on there; other machines only where the cause names them.
    """

    scopes: dict[str, Scope] = {}
    machines: dict[str, Machine] = {}
    operations: dict[str, Operation] = {}
    maintenances: dict[int, Maintenance] = {}
    """Those that are open and touch one of the scopes."""
    holds: tuple[Hold, ...] = ()
    """All that there are."""
    lost: dict[str, Lost] = {}
    """Only where a fleet is applied."""
    retired: dict[str, int] = {}
    """The last incarnations of scopes that were removed, by key; only where a fleet is applied."""
    parted: dict[str, Parting] = {}
    """What machines that were removed may have read last, by key; only where a fleet is applied."""
    user_events_pending: int = 0
    """How many events of users' own maintenance are Scheduled anywhere; only where that has a
    limit."""


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """New values for what a decision changed; the store saves them and the feed tells them."""

    maintenances: tuple[Maintenance, ...] = ()
    operations: tuple[Operation, ...] = ()
    scopes: tuple[Scope, ...] = ()
    machines: tuple[Machine, ...] = ()
    removed_machines: tuple[str, ...] = ()
    """Keys."""
    removed_scopes: tuple[str, ...] = ()
    """Keys."""
    holds: tuple[Hold, ...] = ()
    """New ones."""
    released: tuple[Hold, ...] = ()
    lost: tuple[Lost, ...] = ()
    """New ones; their machines are among the removed."""
    found: tuple[str, ...] = ()
    """Keys of lost machines that were added again."""

    def __bool__(self) -> bool:
        """Tell whether anything changed."""
        return any(getattr(self, field) for field in self.__struct_fields__)


def covers(hold: Hold, operation: Operation) -> bool:
    """Tell whether a hold keeps this operation from starting."""
    match hold.kind:
        case HoldKind.EVERYTHING:
            return True
        case HoldKind.SCOPE:
            return any(event.scope == hold.name for event in operation.events)
        case HoldKind.HOST:
            return hold.name in operation.hosts
        case HoldKind.MACHINE:
            return any(key(name) == hold.name for name in operation.machines)


class Enablement(StrEnum):
    """When a scope has events at all."""

    ALWAYS = "always"
    FIRST_REQUEST = "first-request"
    """Off until one of its machines asks, and off again when none has asked for long."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """What rules look at beside the snapshot: the settings, and whether anything may start."""

    enablement: Enablement = Enablement.ALWAYS
    disable_after: timedelta = timedelta(hours=24)
    """With FIRST_REQUEST: how long a scope stays on without being asked for."""
    user_initiated_limit: int = 0
    """The most events that users' own maintenance may have pending; 0 is no limit."""
    starts: bool = True
    """Whether anything may start now; not while the time of day is doubted, or guests cannot read.
    What gets ready meanwhile is due as soon as it may. A failure without notice has happened, and
    enters all the same."""

    def is_on(self, scope: Scope, now: datetime) -> bool:
        """Tell whether the scope's guests are told of what is announced now."""
        if self.enablement is Enablement.ALWAYS:
            return True
        return scope.asked_at is not None and now - scope.asked_at < self.disable_after
