"""`forewarn hold` and `release`: block maintenance from starting, and let it start again."""

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from forewarn.cli import operations, output
from forewarn.cli.operator import OperatorClient, asks
from forewarn.cli.options import ReasonOption, argument

if TYPE_CHECKING:
    from forewarn.server.operator import schemas


NameArgument = Annotated[
    str, argument("[NAME]", "The name of the scope, host or machine; leave out for everything.")
]


@asks
def hold(
    what: Annotated[
        Literal["everything", "scope", "host", "machine", "list"],
        argument("WHAT", "What to hold, or `list` to show the holds."),
    ],
    name: NameArgument = "",
    *,
    reason: ReasonOption = "",
    service: OperatorClient,
) -> None:
    """Block maintenance from starting until released.

    What has started goes on. 'hold list' lists the holds.
    """
    if what == "list":
        if name or reason:
            raise typer.BadParameter("'hold list' takes no name and no --reason")
        service.get("/v1/holds").show(_draw)
        return
    _check(what, name)
    answer = service.post("/v1/holds", kind=what, name=name, reason=reason)
    if not service.as_json:
        output.say(f"{what} {name}".rstrip() + " is held")
    answer.show(operations.states)


@asks
def release(
    what: Annotated[
        Literal["everything", "scope", "host", "machine"], argument("WHAT", "What to release.")
    ],
    name: NameArgument = "",
    *,
    service: OperatorClient,
) -> None:
    """Release a hold, so that what it blocked goes on.

    It goes on with the notice that was left, unless another hold covers it.
    """
    _check(what, name)
    answer = service.delete("/v1/holds", kind=what, name=name)
    if not service.as_json:
        output.say(f"{what} {name}".rstrip() + " is released")
    answer.show(operations.states)


def _check(what: str, name: str) -> None:
    if what == "everything" and name:
        raise typer.BadParameter(f"'everything' takes no name: remove {name!r}")
    if what != "everything" and not name:
        raise typer.BadParameter(f"missing the name of the {what}")


def _draw(found: "schemas.HoldList") -> None:
    output.table(
        found.holds,
        {
            "HELD": lambda one: f"{one.kind} {one.name}".rstrip(),
            "SINCE": lambda one: one.at,
            "BY": lambda one: one.by,
            "REASON": lambda one: one.reason,
            "BLOCKS": lambda one: output.counted(
                one.operations.names, "operations", one.operations.count
            ),
        },
        empty="There are no holds.",
    )
