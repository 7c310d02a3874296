"""Values to rows and back. A round trip is exact."""

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import RowMapping

from forewarn.maintenance import decide
from forewarn.maintenance.model import (
    Approval,
    Event,
    Hold,
    HoldKind,
    Intervention,
    Lost,
    Machine,
    Maintenance,
    Operation,
    Profile,
    RollingUpdate,
    Scope,
    StartCause,
)
from forewarn.vocabulary import (
    ApproverKind,
    EventSource,
    EventStatus,
    EventType,
    Priority,
    ScopeKind,
)

Row = dict[str, Any]
"""A row to write, by column."""

MACHINE_COLUMNS = (
    "key",
    "name",
    "scope",
    "update_domain",
    "fault_domain",
    "vm_id",
    "host",
    "address",
    "role",
    "tags",
    "profile",
    "listener",
)
"""The columns that `MachineReader` is given, in this order."""

_names = msgspec.json.Decoder(tuple[str, ...])
_types = msgspec.json.Decoder(tuple[EventType, ...])
_pairs = msgspec.json.Decoder(tuple[tuple[str, str], ...])
_walks = msgspec.json.Decoder(tuple[RollingUpdate, ...])
_interventions = msgspec.json.Decoder(tuple[Intervention, ...])
_fields = msgspec.json.Decoder(dict[str, str])


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def scope_row(scope: Scope) -> Row:
    """Return the row of a scope."""
    return {
        "key": scope.key,
        "name": scope.name,
        "kind": scope.kind.value,
        "update_domains": scope.update_domains,
        "incarnation": scope.incarnation,
        "priority": scope.priority.value,
        "automatically_approve": _text(scope.automatically_approve),
        "terminate_notice_minutes": scope.terminate_notice_minutes,
        "asked_at": scope.asked_at,
    }


def scope_value(row: RowMapping) -> Scope:
    """Return the scope of a row."""
    return Scope(
        name=row["name"],
        kind=ScopeKind(row["kind"]),
        update_domains=row["update_domains"],
        incarnation=row["incarnation"],
        priority=Priority(row["priority"]),
        automatically_approve=_types.decode(row["automatically_approve"]),
        terminate_notice_minutes=row["terminate_notice_minutes"],
        asked_at=row["asked_at"],
    )


def machine_row(machine: Machine) -> Row:
    """Return the row of a machine."""
    profile = machine.profile
    # Every value that says something is written, the defaults too: they may change one day.
    said = {name: v for name in profile.__struct_fields__ if (v := getattr(profile, name))}
    return {
        "key": machine.key,
        "name": machine.name,
        "scope": machine.scope,
        "update_domain": machine.update_domain,
        "fault_domain": machine.fault_domain,
        "vm_id": machine.vm_id,
        "host": machine.host,
        "address": machine.address,
        "role": machine.role,
        "tags": _text(machine.tags),
        "profile": _text(said),
        "listener": machine.listener,
    }


class MachineReader:
    """Makes machines of rows and lets them share what is equal.

    A fleet is held in memory whole: a hundred thousand machines share a few profiles, hosts and
    scopes instead of holding a copy each.
    """

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._tags: dict[str, tuple[tuple[str, str], ...]] = {}
        self._profiles: dict[str, Profile] = {}

    def read(self, row: Sequence[Any]) -> tuple[str, Machine]:
        """Return the key and the machine of a row of MACHINE_COLUMNS."""
        key, name, scope, update_domain, fault_domain, vm_id, host, address, role, *more = row
        tags, said, listener = more
        share = self._texts.setdefault
        return (name if name == key else key), Machine(
            name=name,
            scope=share(scope, scope),
            update_domain=update_domain,
            fault_domain=fault_domain,
            vm_id=vm_id,
            host=share(host, host),
            address=address,
            role=share(role, role),
            tags=self._tags_of(tags),
            profile=self._profile_of(said),
            listener=share(listener, listener),
        )

    def _tags_of(self, text: str) -> tuple[tuple[str, str], ...]:
        tags = self._tags.get(text)
        if tags is None:
            tags = self._tags[text] = _pairs.decode(text)
        return tags

    def _profile_of(self, text: str) -> Profile:
        profile = self._profiles.get(text)
        if profile is None:
            said = _fields.decode(text)
            values = ((name, said.get(name, "")) for name in Profile.__struct_fields__)
            share = self._texts.setdefault
            profile = Profile(**{name: share(value, value) for name, value in values})
            self._profiles[text] = profile
        return profile


def maintenance_row(maintenance: Maintenance) -> Row:
    """Return the row of a maintenance."""
    return {
        "number": maintenance.number,
        "event_type": maintenance.event_type.value,
        "source": maintenance.source.value,
        "targets": _text(maintenance.targets),
        "requested_by": maintenance.requested_by,
        "requested_at": maintenance.requested_at,
        "description": maintenance.description,
        "duration_seconds": maintenance.duration_seconds,
        "without_notice": maintenance.without_notice,
        "rolling_updates": _text(maintenance.rolling_updates),
        "announced": maintenance.announced,
        "open": maintenance.open,
        "interventions": _text(maintenance.interventions),
    }


def maintenance_value(row: RowMapping) -> Maintenance:
    """Return the maintenance of a row."""
    return Maintenance(
        number=row["number"],
        event_type=EventType(row["event_type"]),
        source=EventSource(row["source"]),
        targets=_names.decode(row["targets"]),
        requested_by=row["requested_by"],
        requested_at=row["requested_at"],
        description=row["description"],
        duration_seconds=row["duration_seconds"],
        without_notice=row["without_notice"],
        rolling_updates=_walks.decode(row["rolling_updates"]),
        announced=row["announced"],
        interventions=_interventions.decode(row["interventions"]),
    )


def operation_row(operation: Operation) -> Row:
    """Return the row of an operation, without its events."""
    return {
        "id": operation.id,
        "maintenance": operation.maintenance,
        "event_type": operation.event_type.value,
        "source": operation.source.value,
        "description": operation.description,
        "duration_seconds": operation.duration_seconds,
        "status": operation.status.value,
        "announced_at": operation.announced_at,
        "not_before": operation.not_before,
        "start_cause": operation.start_cause and operation.start_cause.value,
        "started_at": operation.started_at,
        "ended_at": operation.ended_at,
        "waits_for": operation.waits_for,
        "outcome": operation.outcome,
        "attempt": operation.attempt,
        "executor": operation.executor,
        "lease_until": operation.lease_until,
        "wakeup_at": decide.wakeup_at(operation),
        "hosts": _text(operation.hosts),
        "rolling_update": operation.rolling_update,
        "held_at": operation.held_at,
        "notice_left_seconds": operation.notice_left_seconds,
        "acknowledged_by": operation.acknowledged_by,
        "outcome_unknown": operation.outcome_unknown,
        "repeat_after": operation.repeat_after,
        "interventions": _text(operation.interventions),
    }


def operation_value(row: RowMapping, events: tuple[Event, ...]) -> Operation:
    """Return the operation of a row and its events."""
    start_cause = row["start_cause"]
    return Operation(
        id=row["id"],
        maintenance=row["maintenance"],
        event_type=EventType(row["event_type"]),
        source=EventSource(row["source"]),
        description=row["description"],
        duration_seconds=row["duration_seconds"],
        status=EventStatus(row["status"]),
        announced_at=row["announced_at"],
        not_before=row["not_before"],
        events=events,
        start_cause=None if start_cause is None else StartCause(start_cause),
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        waits_for=row["waits_for"],
        outcome=row["outcome"],
        attempt=row["attempt"],
        executor=row["executor"],
        lease_until=row["lease_until"],
        hosts=_names.decode(row["hosts"]),
        rolling_update=row["rolling_update"],
        held_at=row["held_at"],
        notice_left_seconds=row["notice_left_seconds"],
        acknowledged_by=row["acknowledged_by"],
        outcome_unknown=row["outcome_unknown"],
        repeat_after=row["repeat_after"],
        interventions=_interventions.decode(row["interventions"]),
    )


def event_rows(operation: Operation) -> list[Row]:
    """Return the rows of an operation's events, in their order."""
    return [
        _event_row(operation, position, event) for position, event in enumerate(operation.events)
    ]


def _event_row(operation: Operation, position: int, event: Event) -> Row:
    approval = event.approval
    return {
        "id": event.id,
        "operation": operation.id,
        "position": position,
        "live": operation.status.visible,
        "scope": event.scope,
        "update_domain": event.update_domain,
        "machines": _text(event.machines),
        "published": event.published,
        "approved_kind": approval and approval.kind.value,
        "approved_by": approval and approval.by,
        "approved_address": approval and approval.address,
        "approved_at": approval and approval.at,
        "silent": event.silent,
    }


def event_value(row: RowMapping) -> Event:
    """Return the event of a row."""
    approval = None
    if row["approved_kind"] is not None:
        approval = Approval(
            kind=ApproverKind(row["approved_kind"]),
            by=row["approved_by"],
            address=row["approved_address"],
            at=row["approved_at"],
        )
    return Event(
        id=row["id"],
        scope=row["scope"],
        update_domain=row["update_domain"],
        machines=_names.decode(row["machines"]),
        published=row["published"],
        approval=approval,
        silent=row["silent"],
    )


def hold_row(hold: Hold) -> Row:
    """Return the row of a hold."""
    return {
        "kind": hold.kind.value,
        "name": hold.name,
        "reason": hold.reason,
        "by": hold.by,
        "at": hold.at,
    }


def hold_value(row: RowMapping) -> Hold:
    """Return the hold of a row."""
    return Hold(
        kind=HoldKind(row["kind"]),
        name=row["name"],
        reason=row["reason"],
        by=row["by"],
        at=row["at"],
    )


def lost_row(lost: Lost) -> Row:
    """Return the row of a lost machine."""
    return {
        "key": lost.key,
        "name": lost.name,
        "event_type": lost.event_type.value,
        "operation": lost.operation,
        "at": lost.at,
    }


def lost_value(row: RowMapping) -> Lost:
    """Return the lost machine of a row."""
    return Lost(
        name=row["name"],
        event_type=EventType(row["event_type"]),
        operation=row["operation"],
        at=row["at"],
    )
