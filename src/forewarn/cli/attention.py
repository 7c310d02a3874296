"""`forewarn attention`, `note` and `resolve`: what needs an operator, and what one says of it."""

from enum import StrEnum
from typing import Annotated

import typer

from forewarn.cli import operations, output, times
from forewarn.cli.exits import ExitStatus
from forewarn.cli.operator import JsonOption, OperatorOption, Service, segment, who


class Verdict(StrEnum):
    """What became of an operation in doubt, as it is typed."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    REPEAT = "repeat"


def attention(*, as_json: JsonOption = False, operator: OperatorOption = None) -> None:
    """List what needs an operator, the oldest first.

    Ends with 0 when that is nothing, and with 11 when it is something.
    """
    from forewarn.server.operator import schemas

    answer = Service(operator).get("/v1/alerts")
    found = answer.read(schemas.AlertList)
    if as_json:
        output.document(answer.tree())
    else:
        output.table(
            ("KIND", "ABOUT", "SINCE", "WHAT"),
            (
                (item.kind, item.about, times.shown(item.since), item.message)
                for item in found.items
            ),
            empty="Nothing needs an operator.",
        )
        if found.count > len(found.items):
            output.note(f"These are the oldest {len(found.items)} of {found.count}.")
    if found.count:
        raise typer.Exit(ExitStatus.ATTENTION)


def note(
    references: Annotated[
        list[str],
        typer.Argument(metavar="REF", help="Operations (12.1) that failed, or maintenances (12)."),
    ],
    *,
    as_json: JsonOption = False,
    operator: OperatorOption = None,
) -> None:
    """Take note of failures: they need attention no more.

    All of them or, if one is no failure, none; history keeps who took note.
    """
    from forewarn.server.operator import schemas

    body = {"references": references, "by": who()}
    answer = Service(operator).ask("POST", "/v1/acknowledgements", body=body)
    if as_json:
        output.document(answer.tree())
        return
    operations.became(answer.read(schemas.OperationList).operations)


def resolve(
    reference: Annotated[str, typer.Argument(metavar="REF", help="An operation (12.1) in doubt.")],
    verdict: Annotated[
        Verdict, typer.Argument(metavar="VERDICT", help="succeeded, failed or repeat.")
    ],
    *,
    as_json: JsonOption = False,
    operator: OperatorOption = None,
) -> None:
    """Say what became of an operation that is in doubt.

    Nobody knows whether it was carried out. 'repeat' lets it be carried out again, as far as
    nobody knows that it was.
    """
    from forewarn.server.operator import schemas

    path = f"/v1/operations/{segment(reference)}/resolution"
    answer = Service(operator).ask("POST", path, body={"verdict": verdict, "by": who()})
    if as_json:
        output.document(answer.tree())
        return
    operations.became(answer.read(schemas.OperationList).operations)
