"""Operations at random that could be: for the timeline and the counters."""

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from forewarn.maintenance.model import Approval, Machine, Operation, StartCause
from forewarn.vocabulary import ApproverKind, EventSource, EventStatus, EventType
from guest import room

NOW = datetime(2026, 3, 2, 15, 43, 20, tzinfo=UTC)
SCOPES = tuple(f"scope{n}" for n in range(16))


def machine(name: str, scope: str = "web", domain: int = 0, **facts: Any) -> Machine:
    return room.machine(name, scope=scope, update_domain=domain, **facts)


def operation(
    number: int = 1,
    status: EventStatus = EventStatus.SCHEDULED,
    *,
    machines: tuple[str, ...] = ("web-0",),
    scope: str = "web",
    domain: int = 0,
    announced: datetime = NOW - timedelta(minutes=5),
    **more: Any,
) -> Operation:
    """An operation with one event, with the times that its status needs."""
    given: dict[str, Any] = {"not_before": announced + timedelta(minutes=15)}
    if status in {EventStatus.STARTED, EventStatus.RETURNING}:
        given |= {"started_at": NOW - timedelta(minutes=1), "awaited": machines}
    if status in {EventStatus.COMPLETED, EventStatus.FAILED}:
        given |= {"started_at": NOW - timedelta(minutes=3), "ended_at": NOW - timedelta(minutes=1)}
    if status is EventStatus.CANCELED:
        given["ended_at"] = NOW - timedelta(minutes=1)
    if status is EventStatus.FAILED:
        given["awaited"] = machines
    event = room.event(
        f"00000000-0000-4000-8000-{number:012X}",
        scope=scope,
        update_domain=domain,
        machines=machines,
        published=1,
        approval=more.pop("approval", None),
    )
    given |= {"source": EventSource.PLATFORM, "description": "", "duration_seconds": 300}
    given |= {"id": f"{number}.1", "maintenance": number, "announced_at": announced}
    return room.operation(event, **{**given, "status": status, **more})


@st.composite
def operations(draw: st.DrawFn, most: int = 30, back: int = 20_000) -> list[Operation]:
    """Up to so many operations, announced up to so many seconds before NOW."""
    scopes = SCOPES[: draw(st.sampled_from((1, 3, 16)))]
    found = []
    for number in range(1, draw(st.integers(0, most)) + 1):
        status = draw(st.sampled_from(EventStatus))
        announced = NOW - timedelta(seconds=draw(st.integers(0, back)))
        notice = timedelta(seconds=draw(st.sampled_from((0, 30, 600, 900, 90_000))))
        more: dict[str, Any] = {"not_before": announced + notice}
        ended = announced + (NOW - announced) * draw(st.floats(0, 1))
        started = announced + (ended - announced) * draw(st.floats(0, 1))
        if status in {EventStatus.STARTED, EventStatus.RETURNING}:
            more["started_at"] = started
        if status in {EventStatus.COMPLETED, EventStatus.FAILED}:
            more |= {"started_at": started, "ended_at": ended, "start_cause": StartCause.APPROVED}
        if status is EventStatus.CANCELED:
            more["ended_at"] = ended
        if draw(st.booleans()):
            more["approval"] = Approval(kind=ApproverKind.GUEST, by="web-0", at=started)
        names = tuple(f"machine-{number}-{n}" for n in range(draw(st.sampled_from((1, 1, 9)))))
        found.append(
            operation(
                number,
                status,
                machines=names,
                scope=draw(st.sampled_from(scopes)),
                domain=draw(st.integers(0, 3)),
                announced=announced,
                duration_seconds=draw(st.sampled_from((-1, 0, 9, 300, 7200))),
                event_type=draw(st.sampled_from(EventType)),
                **more,
            )
        )
    return found
