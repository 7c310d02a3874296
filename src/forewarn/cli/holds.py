"""`forewarn hold` and `release`: block maintenance from starting, and let it start again."""

from enum import StrEnum
from typing import Annotated

import typer

from forewarn.cli import operations, output, times
from forewarn.cli.operator import JsonOption, OperatorClient, OperatorOption, ReasonOption, who


class ReleaseTarget(StrEnum):
    """What `release` takes."""

    EVERYTHING = "everything"
    SCOPE = "scope"
    HOST = "host"
    MACHINE = "machine"


class HoldTarget(StrEnum):
    """What `hold` takes: the same, or `list`."""

    EVERYTHING = "everything"
    SCOPE = "scope"
    HOST = "host"
    MACHINE = "machine"
    LIST = "list"


NameArgument = Annotated[
    str,
    typer.Argument(
        metavar="[NAME]",
        help="The name of the scope, host or machine; leave out for everything.",
        show_default=False,
    ),
]


def hold(
    what: Annotated[
        HoldTarget,
        typer.Argument(metavar="WHAT", help="What to hold, or `list` to show the holds."),
    ],
    name: NameArgument = "",
    *,
    reason: ReasonOption = "",
    as_json: JsonOption = False,
    operator: OperatorOption = None,
) -> None:
    """Block maintenance from starting until released.

    What has started goes on. 'hold list' lists the holds.
    """
    if what is HoldTarget.LIST:
        if name or reason:
            raise typer.BadParameter("'hold list' takes no name and no --reason")
        _list(as_json=as_json, operator=operator)
        return
    _check(what, name)
    body = {"kind": what, "name": name, "reason": reason, "by": who()}
    answer = OperatorClient(operator).ask("POST", "/v1/holds", body=body)
    if not as_json:
        output.say(f"{what} {name}".rstrip() + " is held")
    operations.show(answer, as_json=as_json)


def release(
    what: Annotated[ReleaseTarget, typer.Argument(metavar="WHAT", help="What to release.")],
    name: NameArgument = "",
    *,
    as_json: JsonOption = False,
    operator: OperatorOption = None,
) -> None:
    """Release a hold, so that what it blocked goes on.

    It goes on with the notice that was left, unless another hold covers it.
    """
    _check(what, name)
    query = {"kind": what, "name": name, "by": who()}
    answer = OperatorClient(operator).ask("DELETE", "/v1/holds", query=query)
    if not as_json:
        output.say(f"{what} {name}".rstrip() + " is released")
    operations.show(answer, as_json=as_json)


def _check(what: str, name: str) -> None:
    if what == "everything" and name:
        raise typer.BadParameter(f"'everything' takes no name: remove {name!r}")
    if what != "everything" and not name:
        raise typer.BadParameter(f"missing the name of the {what}")


def _list(*, as_json: bool, operator: str | None) -> None:
    from forewarn.server.operator import schemas

    def draw(found: schemas.HoldList) -> None:
        output.table(
            found.holds,
            {
                "HELD": lambda one: f"{one.kind} {one.name}".rstrip(),
                "SINCE": lambda one: times.shown(one.at),
                "BY": lambda one: one.by,
                "REASON": lambda one: one.reason or "-",
                "BLOCKS": lambda one: (
                    output.listed(one.operations.names, one.operations.count) or "-"
                ),
            },
            empty="There are no holds.",
        )

    OperatorClient(operator).get("/v1/holds").show(schemas.HoldList, draw, as_json=as_json)
