"""`forewarn serve`: run the service."""

import os
from pathlib import Path
from typing import Annotated

import typer

from forewarn.cli.exits import server_is_installed, settings_are_usable
from forewarn.cli.options import option


def serve(
    *,
    config: Annotated[
        Path | None,
        option(
            "--config",
            "FILE",
            "The settings, TOML. Default: FOREWARN_CONFIG, the user's own file, "
            "or /etc/forewarn/forewarn.toml.",
        ),
    ] = None,
) -> None:
    """Run the service until SIGTERM or Ctrl-C."""
    from forewarn.server import settings

    with settings_are_usable():
        loaded = settings.load(config, os.environ)
    with server_is_installed("forewarn serve"):
        from forewarn.server import run

        if loaded.store.url:
            import psycopg  # noqa: F401 - the service imports it where it opens the store
    status = run.serve(loaded)
    if status:
        raise typer.Exit(status)
