"""`forewarn alerts`, `acknowledge`, `resolve` and `clock trust`: what needs an operator."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from forewarn.cli import operations, output, times
from forewarn.cli.exits import ExitStatus
from forewarn.cli.operator import JsonOption, OperatorClient, OperatorOption, segment, who

if TYPE_CHECKING:
    from forewarn.server.operator import schemas

clock = typer.Typer(no_args_is_help=True)

CLOCK_IS_RIGHT = "Say that the service machine's clock is right."
"""What a list of commands has room for."""


class Resolution(StrEnum):
    """The result of an operation whose outcome is unknown."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    REPEAT = "repeat"


def alerts(*, as_json: JsonOption = False, operator: OperatorOption = None) -> None:
    """List what needs an operator, the oldest first.

    Exit status: 0 without alerts, 11 with some.
    """
    from forewarn.server.operator import schemas

    answer = OperatorClient(operator).get("/v1/alerts")
    answer.show(schemas.AlertList, _draw, as_json=as_json)
    if answer.tree()["count"]:
        raise typer.Exit(ExitStatus.ALERTS)


def acknowledge(
    references: Annotated[
        list[str],
        typer.Argument(metavar="REF", help="Failed operations (12.1), or maintenances (12)."),
    ],
    *,
    as_json: JsonOption = False,
    operator: OperatorOption = None,
) -> None:
    """Acknowledge failures and end their alerts.

    If one is not a failure, none is acknowledged. The history records who did it.
    """
    body = {"references": references, "by": who()}
    answer = OperatorClient(operator).ask("POST", "/v1/acknowledgements", body=body)
    operations.show(answer, as_json=as_json)


def resolve(
    reference: Annotated[str, typer.Argument(metavar="REF", help="An operation (12.1).")],
    verdict: Annotated[
        Resolution, typer.Argument(metavar="RESULT", help="succeeded, failed or repeat.")
    ],
    *,
    as_json: JsonOption = False,
    operator: OperatorOption = None,
) -> None:
    """Record the result of an operation whose outcome is unknown.

    'repeat' reruns the machines whose result is unknown.
    """
    path = f"/v1/operations/{segment(reference)}/resolution"
    answer = OperatorClient(operator).ask("POST", path, body={"verdict": verdict, "by": who()})
    operations.show(answer, as_json=as_json)


@clock.callback(short_help=CLOCK_IS_RIGHT)
def _clock() -> None:
    """Say that the service machine's clock is right, after it was doubted."""


@clock.command(short_help=CLOCK_IS_RIGHT)
def trust(*, as_json: JsonOption = False, operator: OperatorOption = None) -> None:
    """Say that the service machine's clock is right, after it was doubted.

    If it was set forward, every notice is extended; if it was set back, nothing moves.
    """
    answer = OperatorClient(operator).ask("POST", "/v1/clock", body={"trust": True, "by": who()})
    now = answer.tree()["now"]
    if as_json:
        output.document(answer.tree())
    else:
        output.say(f"The clock is trusted: it is {now}.")


def _draw(found: "schemas.AlertList") -> None:
    output.table(
        found.items,
        {
            "KIND": lambda alert: alert.kind,
            "ABOUT": lambda alert: alert.about,
            "SINCE": lambda alert: times.shown(alert.since),
            "WHAT": lambda alert: alert.message,
        },
        empty="There are no alerts.",
    )
    if found.count > len(found.items):
        output.note(f"These are the oldest {len(found.items)} of {found.count}.")
