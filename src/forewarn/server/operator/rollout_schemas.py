"""The JSON of rollouts: the shapes of requests and answers, as `schemas` has the others."""

from datetime import datetime
from typing import Annotated

import msgspec

from forewarn import vocabulary
from forewarn.maintenance import planner
from forewarn.maintenance.rollout import RolloutOrderKind
from forewarn.maintenance.rollout_model import (
    MAX_UNITS,
    RolloutPolicy,
    RolloutState,
    RolloutTask,
    UnitState,
)
from forewarn.maintenance.rollout_plan import PlannedRollout
from forewarn.maintenance.time_windows import MAX_WINDOWS
from forewarn.server.operator.schemas import Body, ListPage, Moment, ShortText, Value


class Blackout(Value, frozen=True, kw_only=True):
    """When no unit may start."""

    opens: Moment
    closes: Moment


class PolicyBody(RolloutPolicy, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The policy of a rollout."""

    windows: Annotated[tuple[ShortText, ...], msgspec.Meta(max_length=MAX_WINDOWS)] = ()
    zone: ShortText = "UTC"
    blackouts: tuple[Blackout, ...] = ()  # type: ignore[assignment] # with zones
    approval_until: Moment | None = None
    check: ShortText = ""


class RolloutRequest(Body, frozen=True, kw_only=True):
    """What is done to which units, and how."""

    event_type: vocabulary.EventType
    hosts: Annotated[tuple[ShortText, ...], msgspec.Meta(max_length=MAX_UNITS)] = ()
    all_hosts: bool = False
    """Every host that a machine is on, or that the connector can drain."""
    scopes: Annotated[tuple[ShortText, ...], msgspec.Meta(max_length=MAX_UNITS)] = ()
    machines: Annotated[tuple[ShortText, ...], msgspec.Meta(max_length=MAX_UNITS)] = ()
    tags: dict[ShortText, ShortText] = msgspec.field(default_factory=dict)
    """The machines that have all of these."""
    source: vocabulary.EventSource = vocabulary.EventSource.PLATFORM
    duration_seconds: Annotated[int, msgspec.Meta(ge=-1, le=planner.MAX_DURATION_SECONDS)] = -1
    description: Annotated[str, msgspec.Meta(max_length=planner.MAX_DESCRIPTION)] | None = None
    without_notice: bool = False
    drain: bool = True
    """For a Reboot: whether hosts that the connector can drain and reboot are drained."""
    policy: PolicyBody = PolicyBody()
    idempotency_key: ShortText = ""


class RolloutUnits(Value, frozen=True, kw_only=True):
    """How many units are in each state."""

    waiting: int = 0
    running: int = 0
    done: int = 0
    failed: int = 0
    skipped: int = 0


class RolloutView(Value, frozen=True, kw_only=True):
    """A rollout, and how far it is."""

    number: int
    """0 in a dry run."""
    state: RolloutState
    reason: str
    """Why it is paused, halted or stopped, or what it waits for."""
    event_type: vocabulary.EventType
    requested_by: str
    requested_at: datetime
    changed_by: str
    changed_at: datetime
    wave: int
    """The wave that has its turn, from 1."""
    waves: int
    unconfirmed: bool
    """Whether this wave waits for an operator."""
    units: RolloutUnits


class RolloutUnitView(Value, frozen=True, kw_only=True):
    """A unit of a rollout."""

    name: str
    kind: vocabulary.TargetKind
    wave: int
    """From 1."""
    state: UnitState
    reason: str
    drain: bool
    """Whether its host is drained and rebooted."""
    maintenance: int
    """The maintenance that was asked for last; 0 for none."""
    changed_at: datetime | None


class RolloutPage(ListPage, frozen=True, kw_only=True):
    """Rollouts, the newest first."""

    rollouts: tuple[RolloutView, ...]


class RolloutDetail(Value, frozen=True, kw_only=True):
    """A rollout with all of its units."""

    rollout: RolloutView
    task: RolloutTask
    policy: RolloutPolicy
    units: tuple[RolloutUnitView, ...]


class RolloutPlan(Value, frozen=True, kw_only=True):
    """A rollout that was asked for, and its plan."""

    dry_run: bool
    rollout: RolloutView
    plan: PlannedRollout


class RolloutOrderBody(Body, frozen=True, kw_only=True):
    """An order about a rollout."""

    order: RolloutOrderKind
    unit: ShortText = ""
    """The unit to skip or to retry."""
