"""`forewarn relay`: runs a host's relay, which answers its guests, and makes relays' tokens."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forewarn.cli import output
from forewarn.cli.exits import ExitStatus, Failed, server_is_installed, settings_are_usable
from forewarn.cli.operator_client import OperatorClient, asks
from forewarn.cli.options import (
    argument,
    flag,
    option,
)

if TYPE_CHECKING:
    from forewarn.server.operator import schemas

app = typer.Typer()

PROGRAM = "forewarn.relay.run"
"""The module that is the relay's process."""


@app.callback(invoke_without_command=True, short_help="Run this host's relay.")
def relay(
    context: typer.Context,
    *,
    config: Annotated[
        Path | None,
        option(
            "--config",
            "FILE",
            "The settings, TOML. Default: FOREWARN_RELAY_CONFIG, the user's own relay.toml, "
            "or /etc/forewarn/relay.toml.",
        ),
    ] = None,
    check: Annotated[
        bool,
        flag("--check", "Ask each replica for this host's documents, show the answers, and exit."),
    ] = False,
) -> None:
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
    if os.name == "posix":
        # The same process, without the command line's memory; -P: not the current folder's modules.
        os.execv(  # noqa: S606 - no shell is the point
            sys.executable, [sys.executable, "-P", "-m", PROGRAM, *options]
        )
    raise typer.Exit(run.main(options))


HostArgument = Annotated[str, argument("HOST", "The host, as the fleet spells it.")]


@app.command()
@asks
def token(
    host: HostArgument,
    *,
    file: Annotated[
        Path | None, option("--output", "FILE", "Write the token to a new file of mode 0600.")
    ] = None,
    service: OperatorClient,
) -> None:
    """Make a token for the relay of a host, and show it once.

    The token that the relay uses stays valid until it uses the new one. Whoever has a host's token
    can read and approve for the machines of that host.
    """
    if file is not None and file.exists():
        raise Failed(ExitStatus.USAGE, f"{file} is there already: name a new file")
    answer = service.post("/v1/relays/tokens", host=host)
    if file is None:
        answer.show(_draw_token)
        return
    from forewarn.server.operator import schemas

    made = answer.read(schemas.NewRelayToken)
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="ascii") as opened:
            opened.write(made.token + "\n")
    except OSError as error:
        message = f"cannot write {file}: {error.strerror}; run the command again for another token"
        raise Failed(ExitStatus.USAGE, message) from error
    output.say(f"Wrote the token of host {made.host} to {file}.")


@app.command()
@asks
def revoke(host: HostArgument, *, service: OperatorClient) -> None:
    """Revoke all tokens of the relay of a host, at once."""
    service.delete("/v1/relays/tokens", host=host).show(_draw_revoked)


def _draw_token(made: "schemas.NewRelayToken") -> None:
    output.say(made.token)


def _draw_revoked(found: "schemas.VoidRelayTokens") -> None:
    output.say(output.printable(f"Revoked {found.revoked} tokens of host {found.host}."))
