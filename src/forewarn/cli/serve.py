"""`forewarn serve` and `replicas`: run the service, and say how it is."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from forewarn.cli import output
from forewarn.cli.command import RequestCommand, command
from forewarn.cli.exits import server_is_installed, settings_are_usable
from forewarn.cli.options import CONFIG

if TYPE_CHECKING:
    from forewarn.server.operator import schemas


@command(CONFIG)
def serve(config: Path | None) -> None:
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
        raise click.exceptions.Exit(status)


# How the service is.


def _standing(replica: "schemas.ReplicaView") -> str:
    if not replica.live or replica.stopped:
        return "stopped" if replica.stopped else "silent"
    if not replica.serving:
        return "closed to guests"
    return "serving"


replicas = RequestCommand(
    "List the replicas that share the database.\n\nWith SQLite there is one.",
    "GET /v1/replicas",
    show=output.AnswerTable(
        "schemas.ReplicaList.replicas",
        {
            "NAME": lambda replica: f"{replica.name}{' (this)' if replica.this else ''}",
            "VERSION": "version",
            "STATE": _standing,
            "LAST BEAT": "beat_at",
            "BEHIND": lambda replica: f"{replica.behind_ms / 1000:.1f} s",
            "CLOCK": lambda replica: f"{replica.clock_ahead_ms / 1000:+.1f} s",
            "CLAIMS": "claims",
        },
        empty="There are no replicas.",
    ),
)
