"""`--wait`: shows how a maintenance goes on, until it is over or needs an operator."""

import contextlib
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any, Final

from forewarn import times
from forewarn.cli import follow, output, stream
from forewarn.cli.exits import ExitStatus, Failed
from forewarn.cli.operator import Answer, OperatorClient
from forewarn.cli.options import flag
from forewarn.vocabulary import EventStatus

if TYPE_CHECKING:
    from forewarn.server.operator import schemas

TYPES: Final = ("maintenance", "operation")
"""The kinds of news that a maintenance makes."""

DECISIVE: Final = frozenset(
    {
        stream.OPEN,
        "gap",
        "maintenance.finished",
        "maintenance.paused",
        "operation.outcome_unknown",
    }
)
"""After these it may be over, or need an operator."""

WaitOption = Annotated[
    bool,
    flag("--wait", "Show what changes until it is over, or needs an operator: exit status 11."),
]


def for_maintenance(service: OperatorClient, number: int) -> tuple[Answer, str]:
    """Wait until a maintenance is over or needs an operator; print a line for each change before.

    Returns:
        The maintenance as it is then, and why not all is well; `""` if all of it has completed.
    """
    found = stream.events(service, types=TYPES, trouble=follow.note)
    with closing(found), _shown() as show:
        for event in found:
            if event.name in {stream.OPEN, "gap"} or _is_of(event, number):
                if event.name != stream.OPEN and not service.as_json:
                    output.say(follow.line(event, shown_at=times.shown))
                if event.name in DECISIVE:
                    answer = service.get(f"/v1/maintenance/{number}")
                    is_over, why = judged(answer)
                    if is_over or why:
                        return answer, why
                show(f"maintenance {number}: {event.name}")
    raise AssertionError  # the events have no end


@contextlib.contextmanager
def told_after_interrupt(what: str, command: str) -> Iterator[None]:
    """After Ctrl-C within, say that it goes on, and how to look at it."""
    try:
        yield
    except KeyboardInterrupt:
        output.note(f"{what} goes on: see '{command}'")
        raise


def judged(answer: Answer) -> tuple[bool, str]:
    """Return whether a maintenance is over, and why not all is well."""
    from forewarn.server.operator import schemas

    detail = answer.read(schemas.MaintenanceDetail)
    return _is_over(detail), "; ".join(_faults(detail))


def _is_over(detail: "schemas.MaintenanceDetail") -> bool:
    updates = detail.maintenance.rolling_updates
    is_going = any(rolling.state != "finished" for rolling in updates)
    return not is_going and all(operation.status.over for operation in detail.operations)


def _faults(detail: "schemas.MaintenanceDetail") -> Iterator[str]:
    for rolling in detail.maintenance.rolling_updates:
        if rolling.state == "paused":
            yield f"paused: {rolling.reason}"
    for operation in detail.operations:
        if operation.outcome_unknown:
            yield f"the outcome of {operation.id} is unknown: {operation.outcome_unknown}"
    if _is_over(detail):
        ended = [o for o in detail.operations if o.status is not EventStatus.COMPLETED]
        yield from (f"{one.id} {one.status}: {one.outcome}".rstrip(": ") for one in ended)


def _is_of(event: stream.StreamEvent, number: int) -> bool:
    return bool(json.loads(event.data).get("data", {}).get("maintenance") == number)


@contextlib.contextmanager
def _shown() -> Iterator[Callable[[str], None]]:
    if not follow.is_live():
        yield lambda _: None
        return
    from rich.console import Console

    console = Console()
    with console.status("waiting") as status:
        yield lambda text: status.update(output.printable(text))


def after(
    service: OperatorClient,
    plan: Answer,
    kind: str,
    draw: Callable[[Any], None],
    wait: Callable[[int], tuple[Answer, str]],
) -> None:
    """Show a plan, wait until its maintenance or rollout is over, and fail where not all is well.

    With --json only the end is shown.
    """
    number = int(plan.tree()[kind]["number"])
    what = f"{kind} {number}"
    with told_after_interrupt(what, f"forewarn {kind} show {number}"):
        if not service.as_json:
            plan.show(draw)
        answer, why = wait(number)
    if service.as_json:
        output.document(answer.tree())
    fail(what, why)


def fail(what: str, why: str) -> None:
    """End the command (ALERTS) where not all is well."""
    if why:
        raise Failed(ExitStatus.ALERTS, f"{what}: {output.printable(why)}")
