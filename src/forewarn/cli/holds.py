"""`forewarn hold` and `release`: keeps things from starting, and lets them go on."""

from enum import StrEnum
from typing import Annotated

import typer

from forewarn.cli import operations, output, times
from forewarn.cli.operator import JsonOption, OperatorOption, Service, who


class What(StrEnum):
    """What is held, as it is typed."""

    EVERYTHING = "everything"
    SCOPE = "scope"
    HOST = "host"
    MACHINE = "machine"


class Asked(StrEnum):
    """What `hold` is asked: what is to be held, or what is."""

    EVERYTHING = "everything"
    SCOPE = "scope"
    HOST = "host"
    MACHINE = "machine"
    LIST = "list"


NameArgument = Annotated[
    str,
    typer.Argument(metavar="[NAME]", help="Which one; none for everything.", show_default=False),
]


def hold(
    what: Annotated[
        Asked, typer.Argument(metavar="WHAT", help="everything, scope, host or machine; or list.")
    ],
    name: NameArgument = "",
    *,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why, shown to whoever asks.")
    ] = "",
    as_json: JsonOption = False,
    operator: OperatorOption = None,
) -> None:
    """Let nothing of this start until it is released.

    What has started goes on. 'hold list' lists what is held.
    """
    from forewarn.server.operator import schemas

    if what is Asked.LIST:
        if name or reason:
            raise typer.BadParameter("'hold list' lists all holds: it takes no name and no reason")
        _list(as_json=as_json, operator=operator)
        return
    _judge(what, name)
    body = {"kind": what, "name": name, "reason": reason, "by": who()}
    answer = Service(operator).ask("POST", "/v1/holds", body=body)
    if as_json:
        output.document(answer.tree())
        return
    output.say(f"{what} {name}".rstrip() + " is held")
    operations.became(answer.read(schemas.OperationList).operations)


def release(
    what: Annotated[
        What, typer.Argument(metavar="WHAT", help="everything, scope, host or machine.")
    ],
    name: NameArgument = "",
    *,
    as_json: JsonOption = False,
    operator: OperatorOption = None,
) -> None:
    """Take a hold back.

    What it kept from starting goes on with the notice that it had left, unless another hold
    covers it.
    """
    from forewarn.server.operator import schemas

    _judge(what, name)
    query = {"kind": what, "name": name, "by": who()}
    answer = Service(operator).ask("DELETE", "/v1/holds", query=query)
    if as_json:
        output.document(answer.tree())
        return
    output.say(f"{what} {name}".rstrip() + " is released")
    operations.became(answer.read(schemas.OperationList).operations)


def _judge(what: What | Asked, name: str) -> None:
    if what == "everything" and name:
        raise typer.BadParameter(f"everything has no name: leave {name} out, or say what it is")
    if what != "everything" and not name:
        raise typer.BadParameter(f"name the {what}")


def _list(*, as_json: bool, operator: str | None) -> None:
    from forewarn.server.operator import schemas

    answer = Service(operator).get("/v1/holds")
    if as_json:
        output.document(answer.tree())
        return
    output.table(
        ("HELD", "SINCE", "BY", "REASON", "KEEPS FROM STARTING"),
        (
            (
                f"{one.kind} {one.name}".rstrip(),
                times.shown(one.at),
                one.by,
                one.reason or "-",
                output.listed(one.operations.names, one.operations.count) or "-",
            )
            for one in answer.read(schemas.HoldList).holds
        ),
        empty="Nothing is held.",
    )
