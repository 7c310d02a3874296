"""`forewarn relay`: runs a host's relay, which answers its guests, and makes relays' tokens."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from forewarn.cli import output
from forewarn.cli.command import RequestCommand, asking, group
from forewarn.cli.exits import (
    ExitStatus,
    Failed,
    become,
    server_is_installed,
    settings_are_usable,
    system_can,
)
from forewarn.cli.operator_client import OperatorClient
from forewarn.cli.options import argument, flag, option

if TYPE_CHECKING:
    from forewarn.server.operator import schemas

PROGRAM = "forewarn.relay.run"
"""The module that is the relay's process."""


@click.pass_context
def relay(context: click.Context, *, config: Path | None, check: bool) -> None:
    """Run this host's relay until SIGTERM or Ctrl-C.

    It answers the guests of one host in place of the service.
    """
    if context.invoked_subcommand is not None:
        return
    options = [*["--check"] * check, *([] if config is None else ["--config", str(config)])]
    with server_is_installed("forewarn relay", "relay"):
        from forewarn.relay import run, settings
    with settings_are_usable():
        settings.load(config, os.environ)
    become(PROGRAM, options)
    raise click.exceptions.Exit(run.main(options))


HOST: Final = argument("host HOST", "The host, as the fleet spells it.")


@asking(HOST, option("--output FILE file", "Write the token to a new file of mode 0600."))
def token(service: OperatorClient, host: str, file: Path | None) -> None:
    """Make a token for the relay of a host, and show it once.

    The token that the relay uses stays valid until it uses the new one. A host's token lets its
    holder read and approve for the machines of that host.
    """
    with system_can(f"write {file}"):
        is_there = file is not None and file.exists()
    if is_there:
        raise Failed(ExitStatus.USAGE, f"{file} is there already: name a new file")
    answer = service.post("/v1/relays/tokens", host=host)
    if file is None:
        answer.show(_draw_token)
        return
    from forewarn.server import secret_files
    from forewarn.server.operator import schemas

    made = answer.read(schemas.NewRelayToken)
    with system_can(f"write {file}", "; run the command again for another token"):
        secret_files.keep(file, made.token)
    if service.as_json:
        output.document({"host": made.host, "file": str(file)})
    else:
        output.say(f"Wrote the token of host {made.host} to {file}.")


def _draw_token(made: "schemas.NewRelayToken") -> None:
    output.say(made.token)


def _draw_revoked(found: "schemas.VoidRelayTokens") -> None:
    output.say(output.printable(f"Revoked the tokens of host {found.host}: {found.revoked}."))


commands = group(
    relay.__doc__ or "",
    {
        "token": token,
        "revoke": RequestCommand(
            "Revoke all tokens of the relay of a host, at once.",
            "DELETE /v1/relays/tokens",
            HOST,
            show=_draw_revoked,
        ),
    },
    callback=relay,
    invoke_without_command=True,
    short_help="Run this host's relay.",
    params=[
        option(
            "--config FILE",
            "The settings, TOML. Default: FOREWARN_RELAY_CONFIG, the user's own relay.toml, "
            "or /etc/forewarn/relay.toml.",
        ),
        flag("--check", "Ask each replica for this host's documents, show the answers, and exit."),
    ],
)
