"""The demo's stage: asks the service what is, listens to the guests, and keeps what is shown."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, Protocol

from forewarn.cli import operations, times
from forewarn.cli.demo import cast, processes
from forewarn.cli.operator import Service
from forewarn.maintenance.model import RollingState
from forewarn.server.operator import schemas, vitals
from forewarn.vocabulary import EventStatus, EventType

LINGER: Final = timedelta(minutes=4)
"""How long, in the service's time, what is over stays beside its machines: under 3 real seconds."""


Asked = str | int | Sequence[str]


class Told(Protocol):
    """Takes the story line by line."""

    def __call__(self, line: str) -> None:
        """Take one line."""
        ...


class Row:
    """What is shown of one machine.

    Args:
        guest: Who is in it.
        process: The program inside it.
    """

    def __init__(self, guest: cast.Guest, process: processes.Process) -> None:
        self.guest = guest
        self.process = process
        self.says = ""
        self.operation: schemas.Operation | None = None
        self.gone = False
        """Whether the machine was deleted."""
        self.stopped = False
        """Whether somebody else stopped its guest."""


class Stage:
    """All that the story plays on.

    Args:
        service: The operator plane.
        rows: The machines in the order in which they are shown.
        tell: Takes the story line by line.
    """

    def __init__(self, service: Service, rows: list[Row], tell: Told) -> None:
        self.service = service
        self.rows = {row.guest.machine: row for row in rows}
        self.tell = tell
        self.operations: dict[str, schemas.Operation] = {}
        self.now: datetime = service.get("/v1/clock").read(vitals.Time).now
        self.stopped_at: dict[str, datetime] = {}
        """When a guest was found stopped that nobody of the demo had stopped."""

    def refresh(self) -> None:
        """Look at the service and the guests once, and tell what is new."""
        self.now = self.service.get("/v1/clock").read(vitals.Time).now
        page = self.service.get("/v1/history", limit=cast.HISTORY).read(schemas.HistoryPage)
        for operation in reversed(page.operations):
            before = self.operations.get(operation.id)
            self.operations[operation.id] = operation
            for line in news(before, operation):
                self.tell(line)
        self._place()
        self._listen()

    def schedule(self, event_type: EventType, **asked: Asked) -> int:
        """Ask for maintenance and return its number.

        Args:
            event_type: What is to happen.
            asked: What else `schemas.MaintenanceRequest` takes.
        """
        body = {"event_type": event_type, "by": "demo", **asked}
        answer = self.service.ask("POST", "/v1/maintenance", body=body)
        return answer.read(schemas.Plan).maintenance.number

    def cancel(self, number: int, reason: str) -> None:
        """Withdraw a maintenance."""
        body = {"reference": str(number), "reason": reason, "by": "demo"}
        self.service.ask("POST", "/v1/cancellations", body=body)

    def of(self, number: int) -> list[schemas.Operation]:
        """Return what is known of a maintenance's operations."""
        return [o for o in self.operations.values() if o.maintenance == number]

    def over(self, number: int) -> bool:
        """Tell whether all of a maintenance is over, with whatever it walks."""
        detail = self.service.get(f"/v1/maintenance/{number}").read(schemas.MaintenanceDetail)
        going = any(
            walk.state is not RollingState.FINISHED for walk in detail.maintenance.rolling_updates
        )
        known = [self.operations.get(o.id) for o in detail.operations]
        return not going and all(o is not None and o.status.over for o in known)

    def delete(self, machine: str) -> None:
        """Stop a machine's guest: the machine is gone."""
        row = self.rows[machine]
        row.gone = True
        row.says = ""
        row.process.stop()

    def _place(self) -> None:
        """Put each operation beside its machines, the newest that is live or just over."""
        for row in self.rows.values():
            row.operation = None
        for operation in self.operations.values():  # oldest first
            ended = operation.ended_at
            if ended is not None and self.now - ended > LINGER:
                continue
            for event in operation.events:
                for name in event.machines:
                    if name in self.rows:
                        self.rows[name].operation = operation

    def _listen(self) -> None:
        for name, row in self.rows.items():
            if row.gone:
                continue
            for line in row.process.lines():
                row.says = line
                self.tell(f"  {name}: {line}")
            if not row.stopped and row.process.status is not None:
                row.stopped = True
                row.says = ""
                self.stopped_at[name] = self.now
                self.tell(f"  the guest of {name} was stopped: it approves nothing any more")


def news(before: schemas.Operation | None, after: schemas.Operation) -> list[str]:
    """Return what is worth telling of a change, in words."""
    names = ", ".join(name for event in after.events for name in event.machines)
    what = f"{after.event_type} of {names}"
    lines = []
    if before is None:
        at = times.hour(after.not_before)
        notice = times.shown_span(operations.notice_seconds(after))
        lines.append(f"{what} is announced: starts by {at} (notice {notice}), sooner if approved")
    for number, event in enumerate(after.events):
        earlier = before.events[number].approval if before else None
        if event.approval is not None and earlier is None:
            lines.append(f"{what} is approved by {event.approval.by}")
    if after.waits_for and (before is None or before.waits_for != after.waits_for):
        lines.append(f"{what} waits: another update domain is down ({after.waits_for})")
    if before is None or before.status is not after.status:
        lines.extend(_status(after, what))
    return lines


def _status(operation: schemas.Operation, what: str) -> list[str]:
    match operation.status:
        case EventStatus.STARTED:
            approved = operation.start_cause == "approved"
            why = "all approved" if approved else "nobody approved, the notice is over"
            return [f"{what} starts: {why}"]
        case EventStatus.COMPLETED:
            took = times.shown_span(operation.took_seconds)
            return [f"{what} is completed after {took}"]
        case EventStatus.CANCELED:
            return [f"{what} is called off ({operation.outcome})"]
        case EventStatus.FAILED:
            return [f"{what} has failed: {operation.outcome}"]
        case _:
            return []
