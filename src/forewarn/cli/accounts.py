"""`forewarn token`, `login`, `audit` and `page`: operators' accounts, and what operators did."""

import os
import sys
from typing import TYPE_CHECKING

from forewarn import times
from forewarn.cli import login, output
from forewarn.cli.command import RequestCommand, command, group
from forewarn.cli.exits import ExitStatus, Failed, read_text
from forewarn.cli.operator_client import MAX_TOKEN, TOKEN_FILE, OperatorClient
from forewarn.cli.options import Choice, argument, flag, option
from forewarn.vocabulary import AccessRole

if TYPE_CHECKING:
    from forewarn.server.operator import schemas


def _draw_new(made: "schemas.NewToken") -> None:
    output.say(made.token)
    ends = times.shown(made.account.expires_at) if made.account.expires_at else "never"
    output.note(f"This is the token of {made.account.name}; nobody can show it again.")
    output.note(f"Its role is {made.account.role}; it expires: {ends}.")
    output.note("It is for TCP (operator.listen): its holder runs 'forewarn login HOST:PORT'.")


def _draw_revoked(found: "schemas.TokenList") -> None:
    for revoked in found.tokens:
        output.say(f"{revoked.name} is revoked")


def _draw_link(made: "schemas.NewPageToken") -> None:
    output.say(made.url)
    account = made.account
    assert account.expires_at is not None
    output.note(f"Open it in a browser: it logs in {account.created_by} ({account.role}), once.")
    output.note(f"It ends at {times.shown(account.expires_at)}, or by 'Log out'.")


TOKENS = output.AnswerTable(
    "schemas.TokenList.tokens",
    {
        "NAME": "name",
        "ROLE": "role",
        "EXPIRES": lambda one: "expired" if one.expired else one.expires_at or "never",
        "CREATED BY": "created_by",
        "CREATED": "created_at",
    },
    empty="There are no tokens: see 'forewarn token create --help'.",
)
AUDIT = output.AnswerTable(
    "schemas.AuditPage.records",
    {
        "AT": "at",
        "BY": lambda one: one.by or "anonymous",
        "WHAT": "summary",
        "OUTCOME": "outcome",
        "ROLE": "role",
        "FROM": "address",
    },
    empty="The audit log has no such record.",
)

token = group(
    "Make, list and revoke operators' tokens.",
    {
        "create": RequestCommand(
            "Make a token for TCP, and print it.\n\n"
            "Nobody can print it again. Give it to its holder in a file of mode 0600.",
            "POST /v1/tokens",
            argument("name NAME", "The account's name, as in the history."),
            option(
                "--role ROLE",
                "metrics, viewer, operator or admin.",
                Choice(role for role in AccessRole if role is not AccessRole.RELAY),
                required=True,
            ),
            option("--expires TIME expires_at", "RFC 3339 with a zone, or from now, such as +90d."),
            show=_draw_new,
        ),
        "list": RequestCommand(
            "List the tokens, without their secrets.", "GET /v1/tokens", show=TOKENS
        ),
        "revoke": RequestCommand(
            "Revoke tokens, all or none.\n\n"
            "Nothing can be changed with them from then on; each replica refuses them as soon as "
            "it hears of it.",
            "DELETE /v1/tokens",
            argument("name NAME...", "Names of tokens."),
            show=_draw_revoked,
        ),
    },
)
page = RequestCommand(
    "Print a link that logs a browser in to the page.\n\n"
    "It works once, and gives the browser your name and role for twelve hours. Show it to nobody.",
    "POST /v1/tokens/page",
    show=_draw_link,
)


@command(argument("address ADDRESS", "HOST:PORT, or a URL such as https://forewarn.example:8172."))
def log_in(address: str) -> None:
    """Remember an address and a token for later commands.

    The token is asked for, or read from stdin, and tried before it is kept. 'forewarn logout'
    forgets both.
    """
    from forewarn.server.settings import CONFIG_VARIABLE

    service = OperatorClient(address=address, token="")
    if "://" not in service.address:
        message = (
            f"{address!r} is the path of a unix socket, which needs no token: expected HOST:PORT "
            "or a URL; for a socket, set FOREWARN_OPERATOR to its path"
        )
        raise Failed(ExitStatus.USAGE, message)
    if sys.stdin.isatty():
        import getpass

        token = getpass.getpass("Token: ").strip()
    else:
        token = read_text("-", MAX_TOKEN).strip()
    if not token or not token.isascii() or len(token.split()) != 1:
        message = "expected one token, as 'forewarn token create' printed it"
        raise Failed(ExitStatus.USAGE, message)
    OperatorClient(address=address, token=token).get("/v1/clock")
    path = login.remember(login.Login(service.address, token), os.environ)
    output.say(f"logged in at {service.address}")
    output.note(f"Commands go there from now on; see {path}.")
    for name in ("FOREWARN_OPERATOR", CONFIG_VARIABLE, TOKEN_FILE):
        if os.environ.get(name):
            output.note(f"warning: {name} is set, and goes before it.")


@command()
def log_out() -> None:
    """Forget the address and the token of 'forewarn login'."""
    known = login.forget(os.environ)
    output.say("logged out" if known else "there is no login to forget")
    if known:
        output.note("The token stays valid until 'forewarn token revoke', or its expiry.")


audit = RequestCommand(
    "List what operators changed, and what was refused.\n\n"
    "The newest first. Who logged in to the page is listed with --logins.",
    "GET /v1/audit",
    option("--since TIME", "Only from this time on: RFC 3339, or such as -2h.", times.past),
    option("--until TIME", "Only before this time.", times.past),
    option("--by NAME", "Only what this account did."),
    flag("--logins", "Also who logged in to the page, and out."),
    show=AUDIT,
    paged="records",
)
