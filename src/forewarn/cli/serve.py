"""`forewarn serve`: runs the service."""

import os
from pathlib import Path
from typing import Annotated

import typer

from forewarn.cli.exits import ExitStatus, Failed


def serve(
    *,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            show_default=False,
            help="The settings, TOML. Default: FOREWARN_CONFIG, the user's own file, "
            "or /etc/forewarn/forewarn.toml.",
        ),
    ] = None,
) -> None:
    """Run the service until SIGTERM or Ctrl-C."""
    from forewarn.server import settings
    from forewarn.settings import SettingsError

    try:
        loaded = settings.load(config, os.environ)
    except SettingsError as error:
        raise Failed(ExitStatus.USAGE, str(error)) from error
    try:
        from forewarn.server import run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "forewarn":
            raise
        message = f"'forewarn serve' needs the package {error.name}: pip install 'forewarn[server]'"
        raise Failed(ExitStatus.MISSING_EXTRA, message) from error
    status = run.serve(loaded)
    if status:
        raise typer.Exit(status)
