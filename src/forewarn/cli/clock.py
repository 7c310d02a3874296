"""`forewarn clock`: an operator's word on the machine's clock."""

import typer

from forewarn.cli import output
from forewarn.cli.operator import JsonOption, OperatorOption, Service, who

app = typer.Typer(help="Trust the machine's clock again.", no_args_is_help=True)


@app.callback()
def _clock() -> None:
    """Trust the machine's clock again."""


@app.command()
def trust(*, as_json: JsonOption = False, operator: OperatorOption = None) -> None:
    """Say that the machine's clock is right as it is.

    What it was set forward lengthens every notice; what it was set back moves nothing.
    """
    answer = Service(operator).ask("POST", "/v1/clock", body={"trust": True, "by": who()})
    if as_json:
        output.document(answer.tree())
        return
    output.say(f"The clock is trusted: it is {answer.tree()['now']}.")
