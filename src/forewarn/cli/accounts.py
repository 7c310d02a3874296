"""`forewarn token`, `audit` and `page`: operators' accounts, and what operators did."""

from typing import TYPE_CHECKING

from forewarn import times
from forewarn.cli import output
from forewarn.cli.command import RequestCommand, group
from forewarn.cli.options import Choice, argument, flag, option
from forewarn.vocabulary import AccessRole

if TYPE_CHECKING:
    from forewarn.server.operator import schemas


def _draw_new(made: "schemas.NewToken") -> None:
    output.say(made.token)
    ends = times.shown(made.account.expires_at) if made.account.expires_at else "never"
    output.note(f"This is the token of {made.account.name}; nobody can show it again.")
    output.note(f"Its role is {made.account.role}; it expires: {ends}.")
    output.note("It is for TCP (operator.listen). With the token in FILE, of mode 0600:")
    output.note("FOREWARN_SET_OPERATOR__TOKEN_FILE=FILE forewarn events --operator HOST:PORT")


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
        "BY": lambda one: one.by or "nobody known",
        "ROLE": "role",
        "FROM": "address",
        "OUTCOME": "outcome",
        "WHAT": "summary",
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
            "Revoke tokens, all or none.\n\nEvery replica refuses them at once.",
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
audit = RequestCommand(
    "List what operators changed, and what was refused.\n\n"
    "The newest first. Who logged in to the page is listed with --logins.",
    "GET /v1/audit",
    option("--since TIME", "Only from this time on: RFC 3339, or such as -2h."),
    option("--until TIME", "Only before this time."),
    option("--by NAME", "Only what this account did."),
    flag("--logins", "Also who logged in to the page, and out."),
    show=AUDIT,
    paged="records",
)
