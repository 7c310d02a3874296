"""`forewarn webhook`: who is told of news by HTTP."""

from typing import TYPE_CHECKING, Annotated

import typer

from forewarn.cli import output
from forewarn.cli.exits import ExitStatus, Failed
from forewarn.cli.follow import TypesOption
from forewarn.cli.operator_client import OperatorClient, asks, segment
from forewarn.cli.options import argument, flag

if TYPE_CHECKING:
    from forewarn.server.operator import webhook_schemas

app = typer.Typer(help="Send news to other services by HTTP.", no_args_is_help=True)

NameArgument = Annotated[str, argument("NAME", "The webhook.")]


@app.command()
@asks
def add(
    name: Annotated[str, argument("NAME", "The webhook's name.")],
    url: Annotated[str, argument("URL", "Where to send, https://...")],
    *,
    types: TypesOption = None,
    insecure: Annotated[
        bool, flag("--insecure", "Allow plain http to another machine, which others can read.")
    ] = False,
    service: OperatorClient,
) -> None:
    """Send news to a URL from now on.

    It prints the secret that verifies the signatures. Nobody can print it again.
    """
    answer = service.post("/v1/webhooks", name=name, url=url, types=types or [], insecure=insecure)
    answer.show(_draw_new)


@app.command("list")
@asks
def list_(*, service: OperatorClient) -> None:
    """List the webhooks, and how far each has come."""
    service.get("/v1/webhooks").show(_draw)


@app.command()
@asks
def test(name: NameArgument, *, service: OperatorClient) -> None:
    """Send a test to a webhook. Exit status: 0 if it is accepted, 3 if not."""
    tree = service.post(f"/v1/webhooks/{segment(name)}/tests").tree()
    if service.as_json:
        output.document(tree)
    if not tree["accepted"]:
        message = f"{name} did not accept the test: {output.printable(tree['trouble'])}"
        raise Failed(ExitStatus.REFUSED, message)
    if not service.as_json:
        output.say(f"{name} has accepted the test")


@app.command()
@asks
def remove(
    names: Annotated[list[str], argument("NAME", "Names of webhooks.")], *, service: OperatorClient
) -> None:
    """Remove webhooks, all or none."""
    answer = service.delete("/v1/webhooks", name=names)
    if service.as_json:
        output.document(answer.tree())
    else:
        for removed in answer.tree()["webhooks"]:
            output.say(f"{removed['name']} is removed")


def _draw_new(made: "webhook_schemas.NewWebhook") -> None:
    output.say(made.secret)
    output.note(f"This is the secret of {made.webhook.name}; nobody can show it again.")
    output.note(f"Try it: forewarn webhook test {made.webhook.name}")


def _draw(found: "webhook_schemas.WebhookList") -> None:
    output.table(
        found.webhooks,
        {
            "NAME": lambda one: one.name,
            "NEXT": lambda one: one.next,
            "WAITS SINCE": lambda one: one.waiting_since,
            "TRIES": lambda one: one.tries,
            "MISSED": lambda one: one.missed_at,
            "TROUBLE": lambda one: one.trouble,
            "URL": lambda one: one.url,
            "TYPES": lambda one: ", ".join(one.types) or "all",
        },
        empty="There are no webhooks: see 'forewarn webhook add --help'.",
    )
