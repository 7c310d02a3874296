"""The JSON of maintenances: the shapes of requests and answers, as `schemas` has the others."""

from datetime import datetime
from typing import Annotated

import msgspec

from forewarn import vocabulary
from forewarn.maintenance import model, planner
from forewarn.maintenance.time_windows import MAX_WINDOWS
from forewarn.maintenance.turn_orders import MaintenanceOrder
from forewarn.maintenance.turn_plan import PlannedTurns
from forewarn.maintenance.units import (
    MAX_BLACKOUTS,
    MAX_UNITS,
    MaintenanceState,
    TurnPolicy,
    UnitKind,
    UnitState,
)
from forewarn.server.operator.schemas import (
    Body,
    ListPage,
    Moment,
    Names,
    OperationView,
    ShortText,
    Value,
)


class Blackout(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When no unit may start."""

    opens: Moment
    closes: Moment


Blackouts = Annotated[tuple[Blackout, ...], msgspec.Meta(max_length=MAX_BLACKOUTS)]


class PolicyBody(TurnPolicy, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The policy of a maintenance: concurrency, windows, waves, and when it halts."""

    windows: Annotated[tuple[ShortText, ...], msgspec.Meta(max_length=MAX_WINDOWS)] = ()
    zone: ShortText = "UTC"
    blackouts: Blackouts = ()  # type: ignore[assignment] # with zones
    approval_until: Moment | None = None


UnitNames = Annotated[tuple[ShortText, ...], msgspec.Meta(max_length=MAX_UNITS)]


class MaintenanceRequest(
    planner.RequestOptions, frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """A request for maintenance of machines, scopes or hosts.

    Machines alone, one scope or one host are announced at once, or refused. With a policy, a drain,
    tags or several of these, each host, update domain and machine is a unit that has its turn.
    """

    machines: Annotated[tuple[str, ...], msgspec.Meta(max_length=planner.MAX_TARGETS)] = ()
    """Names in any case; a name given twice counts once, and one that only a scope has is its."""
    scopes: UnitNames = ()
    """All machines of each."""
    hosts: UnitNames = ()
    """As the fleet file spells them: all machines on each."""
    all_hosts: bool = False
    """Every host that a machine is on, or that the connector can drain."""
    tags: dict[ShortText, ShortText] = msgspec.field(default_factory=dict)
    """The machines that have all of these."""
    policy: PolicyBody | None = None
    """Null for the default, where there is more than one unit."""
    drain: bool = False
    """For a Reboot: whether hosts that the connector can drain and reboot are drained."""
    not_before: Moment | None = None
    opens_at: Moment | None = None
    closes_at: Moment | None = None
    duration_seconds: Annotated[int, msgspec.Meta(ge=-1, le=planner.MAX_DURATION_SECONDS)] = -1
    description: Annotated[str, msgspec.Meta(max_length=planner.MAX_DESCRIPTION)] | None = None
    idempotency_key: ShortText = ""

    @property
    def has_units(self) -> bool:
        """True if its units take their turns by a policy; False if all is announced at once."""
        groups = bool(self.machines) + len(self.scopes) + len(self.hosts)
        return (
            self.policy is not None or self.drain or self.all_hosts or bool(self.tags) or groups > 1
        )


class UnitCounts(Value, frozen=True, kw_only=True):
    """The number of units in each state."""

    waiting: int = 0
    running: int = 0
    done: int = 0
    failed: int = 0
    skipped: int = 0


class UnitView(Value, frozen=True, kw_only=True):
    """A unit of a maintenance: a host, an update domain or a machine that has its turn."""

    name: str
    kind: UnitKind
    wave: int
    """From 1."""
    status: UnitState
    status_detail: str
    """Why it waits, failed or was skipped."""
    drain: bool
    """True if its host is drained and rebooted."""
    operation: str
    """Its latest operation; `""` for none."""
    machines: Names
    """While it waits: the machines that it would take now."""
    changed_at: datetime | None


class MaintenanceView(model.Impact, frozen=True, kw_only=True):
    """A maintenance as it was requested, and its progress."""

    number: int
    """0 in a dry run."""
    targets: tuple[str, ...]
    requested_by: str
    requested_at: datetime
    without_notice: bool
    announced: int
    """The number of its operations so far."""
    status: MaintenanceState
    status_detail: str
    """Why it is paused, halted or stopped, since when, or what it waits for; and what would end
    that."""
    changed_by: str
    changed_at: datetime | None
    wave: int
    """The wave that has its turn, from 1."""
    waves: int
    """0 where it has no units."""
    unconfirmed: bool
    """True if this wave waits for an operator."""
    units: UnitCounts
    operations: dict[vocabulary.EventStatus, int]
    """The number of its operations that history still has, by status."""


class MaintenanceDetail(Value, frozen=True, kw_only=True):
    """A maintenance, its units and its operations."""

    maintenance: MaintenanceView
    policy: TurnPolicy
    units: tuple[UnitView, ...]
    operations: tuple[OperationView, ...]


class MaintenancePlan(MaintenanceDetail, frozen=True, kw_only=True):
    """The result of a request for maintenance, or of its dry run."""

    dry_run: bool
    superseded: tuple[OperationView, ...]
    """Pending operations that it cancelled."""
    plan: PlannedTurns | None
    """The planned turns of its units; null if they have no policy."""


class MaintenancePage(ListPage, frozen=True, kw_only=True):
    """Maintenances, newest first."""

    maintenances: tuple[MaintenanceView, ...]


class MaintenanceOrderRequest(Body, frozen=True, kw_only=True):
    """An order about a maintenance."""

    order: MaintenanceOrder
    unit: ShortText = ""
    """The unit to skip or to retry."""
