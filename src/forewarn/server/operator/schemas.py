"""The JSON of the operators' API: the shapes of requests and answers.

Times are ISO 8601 with a zone; answers are in UTC (`2026-03-01T12:00:00Z`) and in the service's own
time, which `GET /v1/clock` tells. A field that does not apply is null where it is a time, a number
or an object, and `""` where it is text. Unknown keys of a request are refused. Clients should
ignore keys of an answer that they do not know: later releases add some.

Values that the API shows unchanged (`Alert`, `Approval`, `HostPlan`,
`Tombstone`) are the rules' own types. A shape that differs from the rules' value, because it shows
names instead of keys or counts instead of lists, has a name that ends in `View`;
`maintenance.model` explains the fields that both have. A `reference` is an event's id, an operation
(`12.1`) or a maintenance (`12`).
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final

import msgspec

from forewarn import vocabulary
from forewarn.maintenance import host_drain, model
from forewarn.maintenance.accounts import AuditRecord
from forewarn.maintenance.alerts import Alert
from forewarn.maintenance.host_plan import HostPlan
from forewarn.maintenance.webhooks import MAX_URL

MAX_NAMES: Final = 100
"""The most names that a `Names` lists: an answer stays readable, and its count is complete."""

MAX_NUMBER: Final = 2**53
"""The highest maintenance number: beyond it JavaScript's numbers are not exact, and soon after no
store has a column for it."""

MAX_LIMIT: Final = 1000
"""The most entries of one page."""

DEFAULT_LIMIT: Final = 100
"""The entries of a page where the request names no limit."""

MAX_REFERENCES: Final = 1000
"""The most references of one request: as many as a guest's (protocol.md section 5)."""

MAX_REMOVED: Final = 1000
"""The most machines that one request removes: their names must fit into its head
(`connections.MAX_HEAD_BYTES`)."""

MAX_ITEMS: Final = 1000
"""The most alerts of one answer: nobody reads more, and the count is complete."""

MAX_HOSTS: Final = 1000
"""The most hosts of one request."""

MAX_TYPES: Final = 40
"""The most types of news that a webhook names: there are some 35."""


Moment = Annotated[datetime, msgspec.Meta(tz=True)]
"""A time with a zone."""

ShortText = Annotated[str, msgspec.Meta(max_length=256)]
Reason = Annotated[str, msgspec.Meta(max_length=500)]
References = Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=MAX_REFERENCES)]


TokenName = Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}(?!\\n)$")]


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """A part of an answer."""


class Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a request."""


class EmptyBody(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a request that needs none: a page of another origin cannot send JSON."""


class ListPage(Value, frozen=True, kw_only=True):
    """One page of a list."""

    next: str = ""
    """The `cursor` of the next page; `""` after the last."""


class ErrorDetail(Value, frozen=True, kw_only=True):
    """The code, message and facts of an error."""

    code: vocabulary.ErrorCode
    message: str
    """The mistake, the expectation and the remedy, for people."""
    facts: dict[str, str | int] = {}
    """The facts of the message by name, for programs."""


class ErrorBody(Value, frozen=True, kw_only=True):
    """The body of every answer that is not a success."""

    error: ErrorDetail


class Names(Value, frozen=True, kw_only=True):
    """Names, and how many there are in all."""

    count: int
    names: tuple[str, ...] = ()
    """The first MAX_NAMES of them."""


class FleetChange(Value, frozen=True, kw_only=True):
    """The changes, or in a dry run the planned ones, of applying a fleet or removing machines."""

    dry_run: bool
    added: Names
    changed: Names
    removed: Names
    missing: Names
    """Machines that the file does not name; only `prune` removes them."""
    tombstones: Names
    """Machines of the file that were preempted or terminated, and so were left out; `again` adds
    them."""
    unchanged: int
    warnings: tuple[str, ...] = ()
    """Probable mistakes, for people: a listener that the service does not have, a hold that
    outlives what is removed."""


class TombstonePage(ListPage, frozen=True, kw_only=True):
    """Machines that were preempted or terminated, in the order of their names in lower case."""

    tombstones: tuple[model.Tombstone, ...]


class LastSeen(Value, frozen=True, kw_only=True):
    """When a machine last asked for its events, and by which api-version."""

    at: datetime
    version: str
    agent: vocabulary.AgentStatus | None
    """The last status that its agent reported; null if it never did."""
    reason: str


class MachineView(Value, frozen=True, kw_only=True):
    """A machine."""

    name: str
    scope: str
    kind: vocabulary.ScopeKind
    update_domain: int
    fault_domain: int
    host: str
    address: str
    listener: str
    """The name of the listener that it asks at; `""` for one without a name."""
    last_seen: LastSeen | None
    """Null for a machine that never asked."""
    events: tuple[str, ...]
    vm_id: str


class MachinePage(ListPage, frozen=True, kw_only=True):
    """Machines in the order of their names in lower case."""

    machines: tuple[MachineView, ...]


class MachineDetail(MachineView, frozen=True, kw_only=True):
    """A machine with all that is known of it."""

    role: str
    tags: dict[str, str]
    profile: dict[str, str]
    """The rest of its instance metadata, in the fleet file's spelling."""


class ScopeView(Value, frozen=True, kw_only=True):
    """Machines that share one document."""

    name: str
    kind: vocabulary.ScopeKind
    update_domains: int
    incarnation: int
    priority: vocabulary.Priority
    automatically_approve: tuple[vocabulary.EventType, ...]
    terminate_notice_minutes: int | None
    queue: model.Queueing | None
    settle_seconds: int | None
    machines: int
    events: tuple[str, ...]


class ScopePage(ListPage, frozen=True, kw_only=True):
    """Scopes in the order of their names in lower case."""

    scopes: tuple[ScopeView, ...]


class UpdateDomain(Value, frozen=True, kw_only=True):
    """The machines of a scope that may be down together."""

    number: int
    machines: Names


class ScopeDetail(ScopeView, frozen=True, kw_only=True):
    """A scope with its machines by update domain."""

    domains: tuple[UpdateDomain, ...]


class EventView(Value, frozen=True, kw_only=True):
    """The event of an operation in one scope."""

    id: str
    scope: str
    update_domain: int
    machines: tuple[str, ...]
    approval: model.Approval | None
    silent: bool


class OperationState(model.Impact, frozen=True, kw_only=True):
    """The part of an operation that each of its live events repeats."""

    maintenance: int
    status: vocabulary.EventStatus
    status_detail: str
    """The reason why it waits, since when, and the way out, such as `waits for 12.1, which
    failed: acknowledge 12.1`; `""` where the status and the outcome say all."""
    announced_at: datetime | None
    """Null while it is Queued, as `not_before`."""
    not_before: datetime | None
    notice_left_seconds: int | None
    """Until NotBefore, rounded up, 0 once it has come; while it is held, what it would have if it
    were released now; null unless Scheduled."""
    started_at: datetime | None
    waits_for: str
    """The operation that must be over before this one is announced or starts; `""` for none."""
    held_at: datetime | None
    carried_out_at: datetime | None
    awaited: tuple[str, ...]
    """The machines that keep its update domains down."""
    back_by: datetime | None
    up_at: datetime | None
    hosts: tuple[str, ...]
    outcome_unknown: str


class OperationView(OperationState, frozen=True, kw_only=True):
    """An operation: all of it starts at one instant."""

    id: str
    start_cause: model.StartCause | None
    ended_at: datetime | None
    took_seconds: float | None
    """From start to end; null until it has ended, and for what never started."""
    unit: int | None
    """The place of its unit in its maintenance; null where that has no units."""
    outcome: str
    acknowledged_by: str
    attempt: int
    events: tuple[EventView, ...]

    @property
    def machines(self) -> tuple[str, ...]:
        """Its machines, event by event."""
        return tuple(name for event in self.events for name in event.machines)


class OperationList(Value, frozen=True, kw_only=True):
    """The operations that a request was about, as they are after it."""

    operations: tuple[OperationView, ...]


class ShownTo(Value, frozen=True, kw_only=True):
    """The numbers of an event's machines, and of those that can read it (protocol.md section 2)."""

    machines: int
    """All that it affects."""
    seen: int
    """Those that have asked for events since the service started."""
    showing: int
    """Those whose last request was by a version that shows events of this type."""


class AgentWord(Value, frozen=True, kw_only=True):
    """The last status that a machine's agent reported (protocol.md section 10)."""

    machine: str
    status: vocabulary.AgentStatus
    reason: str


class LiveEvent(OperationState, frozen=True, kw_only=True):
    """An event of an operation that is not over, with the state of its operation."""

    id: str
    operation: str
    scope: str
    update_domain: int
    machines: tuple[str, ...]
    approval: model.Approval | None
    silent: bool
    shown_to: ShownTo
    agents: tuple[AgentWord, ...]
    """The statuses of the machines whose agents report one."""


class EventList(Value, frozen=True, kw_only=True):
    """All live events, by NotBefore."""

    now: datetime
    """The service's time, at which the notice left was computed."""
    events: tuple[LiveEvent, ...]


class HistoryPage(ListPage, frozen=True, kw_only=True):
    """Operations, the newest announcement first."""

    operations: tuple[OperationView, ...]


class ApprovalRequest(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Approves for the guests: all references or, if one is unknown, none."""

    references: References
    """Event ids, operations (`12.1`) or maintenances (`12`)."""


class CancellationRequest(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Cancels what has not started: all references or, if one is refused, none."""

    references: References
    reason: Reason = ""


class PostponementRequest(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Moves Scheduled events later, all of them or none."""

    references: References
    not_before: Moment
    """Later than the NotBefore that guests have read."""


class HoldRequest(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Blocks maintenance from starting until it ends."""

    kind: model.HoldKind
    name: ShortText = ""
    """The scope's, the machine's, or the host's as the fleet spells it; `""` for everything."""
    reason: Reason = ""
    until: Moment | None = None
    """The time at which it ends by itself; null: when it is released."""


class HoldView(model.Hold, frozen=True, kw_only=True):
    """A hold, by the name that the fleet gives."""

    operations: Names
    """The operations that it keeps from starting now."""


class HoldList(Value, frozen=True, kw_only=True):
    """All holds, oldest first."""

    holds: tuple[HoldView, ...]


class RelayPresence(StrEnum):
    """The presence of a host's relay, by its requests."""

    EXPECTED = "expected"
    """It has a token, and was not heard yet."""
    PRESENT = "present"
    AWAY = "away"
    """Its next request is late: nothing of the host starts."""


class RelayView(Value, frozen=True, kw_only=True):
    """The relay of a host, as it was heard last."""

    state: RelayPresence
    up_to_date: bool
    """True if it has everything that concerns its host."""
    version: str
    """`""` until it was heard."""
    replica: str
    """The replica that heard it last."""
    heard_at: datetime | None
    started_at: datetime | None
    machines: int
    token_created_at: datetime
    """When the token that it uses was made, or else its newest."""
    token_unused: bool
    """True if a newer token was made that it does not use yet."""


class RelayTokenRequest(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Asks for a token for the relay of a host."""

    host: Annotated[str, msgspec.Meta(min_length=1, max_length=model.MAX_TEXT)]
    """As the fleet spells it."""


class NewRelayToken(Value, frozen=True, kw_only=True):
    """A token, which is never shown again."""

    host: str
    token: str
    created_at: datetime


class VoidRelayTokens(Value, frozen=True, kw_only=True):
    """The number of tokens of a host's relay that were revoked."""

    host: str
    revoked: int


class HostView(Value, frozen=True, kw_only=True):
    """A host, as the connector found it, and how far its drain is."""

    name: str
    status: model.HostState
    status_detail: str
    """Where and why it is stuck, or what it waits for, since when, and what would end that."""
    changed_at: datetime | None
    """When its status changed last; null if it was never drained."""
    closed: bool
    """True if no machine may move there."""
    answers: bool
    why: str
    """Why it does not answer."""
    boot_id: str
    free_memory_mib: int
    target: bool
    can_reboot: bool
    running: int
    """The number of machines that run there, in the fleet or not."""
    relay: RelayView | None
    """Null where its guests have no relay."""


class HostList(Value, frozen=True, kw_only=True):
    """All hosts that the connector knows, by name."""

    now: datetime
    trouble: str
    """Why the hosts could not be looked at; `""` where they were."""
    hosts: tuple[HostView, ...]


class HostGuest(model.GuestFacts, frozen=True, kw_only=True):
    """A machine that a host has."""

    machine: str
    """Its name in the fleet; `""` if it is not in the fleet."""


class DrainMove(Value, frozen=True, kw_only=True):
    """The operation that takes a machine away, or brings it home."""

    operation: str
    status: vocabulary.EventStatus | None
    """Null where history no longer holds it."""
    status_detail: str
    """Its obstacle, and what would end that."""


class DrainedMachine(Value, frozen=True, kw_only=True):
    """A machine that ran on a host when it was drained."""

    name: str
    memory_mib: int
    way: model.Way
    to_host: str
    obstacles: tuple[str, ...]
    host: str
    """Where it is now, as far as is known."""
    leaves_by: DrainMove | None
    returns_by: DrainMove | None


class DrainDetail(model.DrainOptions, frozen=True, kw_only=True):
    """The drain of a host, as it was asked for, and its machines."""

    requested_by: str
    requested_at: datetime
    reboot_asked_at: datetime | None
    booted_at: datetime | None
    machines: tuple[DrainedMachine, ...]


class HostDetail(Value, frozen=True, kw_only=True):
    """A host, the machines on it, and its latest drain."""

    host: HostView
    guests: tuple[HostGuest, ...]
    drain: DrainDetail | None


class HostDrainRequest(model.DrainOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Drains a host, or several one after another: each is a unit of one maintenance."""

    hosts: Annotated[tuple[ShortText, ...], msgspec.Meta(min_length=1, max_length=MAX_HOSTS)]
    without_notice: bool = False
    idempotency_key: ShortText = ""
    """As a request for maintenance has it, for several hosts; one is drained once in any case."""


class HostDrainPlans(Value, frozen=True, kw_only=True):
    """The plan of a drain, host by host; in a dry run nothing more."""

    dry_run: bool
    plans: tuple[HostPlan, ...]
    maintenance: int | None
    """The maintenance whose units the hosts are; null for one host, and in a dry run."""
    states: tuple[HostView, ...]
    """The hosts as they are now."""


class HostOrder(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An operator's order about the drain of a host."""

    order: host_drain.DrainOrder
    machine: ShortText = ""
    """For `skip` and `stop`: the machine."""


class AcknowledgementRequest(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ends alerts, and the wait for machines, after operations: all of them or none."""

    references: References
    """Operations (`12.1`), maintenances (`12`) or events' ids; all of them Failed, or over with
    machines still awaited."""
    even_if_down: bool = False
    """True to go on though machines that have not asked since they went down may still be down."""


class ResolutionRequest(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Records the result of operations whose outcome is unknown: all of them or none."""

    references: References
    verdict: model.Verdict
    """`repeat` reruns the machines whose result is unknown."""


class AlertList(Value, frozen=True, kw_only=True):
    """The alerts, oldest first; empty when all is well."""

    now: datetime
    count: int
    items: tuple[Alert, ...]
    """The first MAX_ITEMS of them."""


class ReplicaView(Value, frozen=True, kw_only=True):
    """A replica, as of its last beat."""

    name: str
    this: bool
    """True if it gave this answer."""
    live: bool
    """True if it beat within the last seconds."""
    version: str
    started_at: datetime
    beat_at: datetime
    serving: bool
    """True if guests can read from it."""
    applied: int
    """The number of the last change that its guests and operators can see."""
    behind_ms: int
    """The time since it last knew every change, as of that beat; 0 where it is alone."""
    clock_ahead_ms: int
    """The lead of its machine's clock over the database's; nothing depends on it."""
    claims: int
    """The number of operations that it carries out."""
    addresses: tuple[str, ...]
    """Where guests reach it."""
    stopped: bool
    """True if it reported that it was stopped."""


class ReplicaList(Value, frozen=True, kw_only=True):
    """The replicas that beat within the last week, by name."""

    now: datetime
    replicas: tuple[ReplicaView, ...]


class ServiceTime(Value, frozen=True, kw_only=True):
    """The service's own time, which may be scaled."""

    now: datetime
    scale: float
    """Its seconds in one real second; 1 except for demonstrations."""


class Health(Value, frozen=True, kw_only=True):
    """The process is alive."""

    status: str
    version: str


class Readiness(Value, frozen=True, kw_only=True):
    """The readiness of the service for all its work."""

    ready: bool
    reasons: tuple[str, ...] = ()
    """The reasons why it is not ready, for people; empty when ready."""


class TokenRequest(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Asks for a new token."""

    name: TokenName
    """The account's name, as history and the audit log show it."""
    role: vocabulary.AccessRole
    expires_at: Moment | None = None
    """Null for never."""


class TokenView(Value, frozen=True, kw_only=True):
    """A token, without the token itself, which nobody keeps."""

    name: str
    role: vocabulary.AccessRole
    created_by: str
    created_at: datetime
    expires_at: datetime | None
    expired: bool
    audience: vocabulary.TokenAudience
    """`page` for a token that lets a browser of `created_by` in."""


class NewToken(Value, frozen=True, kw_only=True):
    """A new token, which is shown this once."""

    token: str
    account: TokenView


class TokenList(Value, frozen=True, kw_only=True):
    """Tokens in the order of their names."""

    tokens: tuple[TokenView, ...]


class NewPageToken(Value, frozen=True, kw_only=True):
    """A new token for the page, in a link that logs a browser in, once."""

    url: str
    """Its fragment is the token."""
    account: TokenView


class AuditRecordView(AuditRecord, frozen=True, kw_only=True):
    """A record of the audit log, and the request in words."""

    summary: str
    """Such as `postponed 2 to 14:23Z`, or `refused: Reboot of web-0`."""


class AuditPage(ListPage, frozen=True, kw_only=True):
    """Records of the audit log, newest first."""

    records: tuple[AuditRecordView, ...]


class WebhookRequest(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Asks for a new webhook."""

    name: TokenName
    url: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_URL)]
    types: Annotated[tuple[ShortText, ...], msgspec.Meta(max_length=MAX_TYPES)] = ()
    """Types of news such as `operation.failed`, or kinds such as `maintenance`; empty for all."""
    insecure: bool = False
    """True to allow http to another machine."""


class WebhookView(Value, frozen=True, kw_only=True):
    """A webhook, without what is secret of it."""

    name: str
    url: str
    """Without its path and query: those of chat services are secrets."""
    types: tuple[str, ...]
    next: str
    """Its cursor: the number of the first item that it has not accepted, or would be next."""
    waiting_since: datetime | None
    """When that item happened; null while none waits."""
    tries: int
    """The number of times that item was refused."""
    next_try_at: datetime | None
    trouble: str
    """Why it was refused last."""
    missed_at: datetime | None
    """When it last went on after news that was deleted before it was accepted."""


class NewWebhook(Value, frozen=True, kw_only=True):
    """A new webhook, with its secret, which is shown this once."""

    webhook: WebhookView
    secret: str


class WebhookList(Value, frozen=True, kw_only=True):
    """Webhooks in the order of their names."""

    webhooks: tuple[WebhookView, ...]


class WebhookTest(Value, frozen=True, kw_only=True):
    """The result of a test."""

    accepted: bool
    trouble: str
    """Why it was not accepted; `""` if it was."""
