"""`forewarn token`, `audit` and `page`: operators' accounts, and what operators did."""

from typing import TYPE_CHECKING, Annotated

import typer

from forewarn import times
from forewarn.cli import output
from forewarn.cli.operator_client import OperatorClient, asks, asks_for_pages
from forewarn.cli.options import argument, option
from forewarn.vocabulary import AccessRole

if TYPE_CHECKING:
    from forewarn.maintenance.accounts import AuditRecord
    from forewarn.server.operator import schemas

token = typer.Typer(help="Make, list and revoke operators' tokens.", no_args_is_help=True)


@token.command()
@asks
def create(
    name: Annotated[str, argument("NAME", "The account's name, as in the history.")],
    *,
    role: Annotated[
        AccessRole,
        option("--role", "ROLE", "metrics, viewer, operator or admin.", case_sensitive=False),
    ],
    expires: Annotated[
        str, option("--expires", "TIME", "RFC 3339 with a zone, or from now, such as +90d.")
    ] = "",
    service: OperatorClient,
) -> None:
    """Make a token for TCP, and print it.

    Nobody can print it again. Give it to its holder in a file of mode 0600.
    """
    at = service.moment(times.moment(expires)) if expires else None
    answer = service.post("/v1/tokens", name=name, role=role, expires_at=at)
    answer.show(_draw_new)


@token.command("list")
@asks
def list_(*, service: OperatorClient) -> None:
    """List the tokens, without their secrets."""
    service.get("/v1/tokens").show(_draw_tokens)


@token.command()
@asks
def revoke(
    names: Annotated[list[str], argument("NAME", "Names of tokens.")], *, service: OperatorClient
) -> None:
    """Revoke tokens, all or none.

    Every replica refuses them at once.
    """
    service.delete("/v1/tokens", name=names).show(_draw_revoked)


@asks
def page(*, service: OperatorClient) -> None:
    """Print a link that logs a browser in to the page.

    It works once, and gives the browser your name and role for twelve hours. Show it to nobody.
    """
    service.post("/v1/tokens/page").show(_draw_link)


@asks_for_pages
def audit(
    *,
    since: Annotated[
        str, option("--since", "TIME", "Only from this time on: RFC 3339, or such as -2h.")
    ] = "",
    until: Annotated[str, option("--until", "TIME", "Only before this time.")] = "",
    by: Annotated[str, option("--by", "NAME", "Only what this account did.")] = "",
    service: OperatorClient,
) -> None:
    """List what operators changed, and what was refused.

    The newest first.
    """
    query = {
        "since": service.moment(times.moment(since)) if since else "",
        "until": service.moment(times.moment(until)) if until else "",
        "by": by,
    }
    service.pages("/v1/audit", "records", **query).show(_draw_audit)


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


def _draw_tokens(found: "schemas.TokenList") -> None:
    output.table(
        found.tokens,
        {
            "NAME": lambda one: one.name,
            "ROLE": lambda one: one.role,
            "EXPIRES": lambda one: "expired" if one.expired else one.expires_at or "never",
            "CREATED BY": lambda one: one.created_by,
            "CREATED": lambda one: one.created_at,
        },
        empty="There are no tokens: see 'forewarn token create --help'.",
    )


def _draw_audit(page: "schemas.AuditPage") -> None:
    def what(record: "AuditRecord") -> str:
        return f"{record.action} {record.detail}".rstrip()

    output.table(
        page.records,
        {
            "AT": lambda one: one.at,
            "BY": lambda one: one.by or "nobody known",
            "ROLE": lambda one: one.role,
            "FROM": lambda one: one.address,
            "OUTCOME": lambda one: one.outcome,
            "WHAT": what,
        },
        empty="The audit log has no such record.",
    )
