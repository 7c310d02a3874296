"""`forewarn webhook`: news for other services, by HTTP."""

from typing import TYPE_CHECKING

from forewarn.cli import output
from forewarn.cli.command import RequestCommand, asking, group
from forewarn.cli.exits import ExitStatus, Failed
from forewarn.cli.operator_client import OperatorClient, segment
from forewarn.cli.options import TYPES, argument, flag

if TYPE_CHECKING:
    from forewarn.server.operator import schemas


@asking(argument("name NAME", "The webhook."))
def test(service: OperatorClient, name: str) -> None:
    """Send a test to a webhook. Exit status: 0 if it is accepted, 3 if not."""
    tree = service.post(f"/v1/webhooks/{segment(name)}/tests").tree()
    if service.as_json:
        output.document(tree)
    if not tree["accepted"]:
        message = f"{name} did not accept the test: {output.printable(tree['trouble'])}"
        raise Failed(ExitStatus.REFUSED, message)
    if not service.as_json:
        output.say(f"{name} has accepted the test")


def _draw_new(made: "schemas.NewWebhook") -> None:
    output.say(made.secret)
    output.note(f"This is the secret of {made.webhook.name}; nobody can show it again.")
    output.note(f"Try it: forewarn webhook test {made.webhook.name}")


def _draw_removed(found: "schemas.WebhookList") -> None:
    for removed in found.webhooks:
        output.say(f"{removed.name} is removed")


WEBHOOKS = output.AnswerTable(
    "schemas.WebhookList.webhooks",
    {
        "NAME": "name",
        "NEXT": "next",
        "WAITS SINCE": "waiting_since",
        "TRIES": "tries",
        "MISSED": "missed_at",
        "TROUBLE": "trouble",
        "URL": "url",
        "TYPES": lambda one: ", ".join(one.types) or "all",
    },
    empty="There are no webhooks: see 'forewarn webhook add --help'.",
)

commands = group(
    "Send news to other services by HTTP.",
    {
        "add": RequestCommand(
            "Send news to a URL from now on.\n\n"
            "It prints the secret that verifies the signatures. Nobody can print it again.",
            "POST /v1/webhooks",
            argument("name NAME", "The webhook's name."),
            argument("url URL", "Where to send, https://..."),
            TYPES,
            flag("--insecure", "Allow plain http to another machine, which others can read."),
            show=_draw_new,
        ),
        "list": RequestCommand(
            "List the webhooks, and how far each has come.", "GET /v1/webhooks", show=WEBHOOKS
        ),
        "test": test,
        "remove": RequestCommand(
            "Remove webhooks, all or none.",
            "DELETE /v1/webhooks",
            argument("name NAME...", "Names of webhooks."),
            show=_draw_removed,
        ),
    },
)
