"""`forewarn alerts`, `acknowledge`, `resolve`, `clock trust`, `replicas`: how the service is."""

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from forewarn.cli import operations, output
from forewarn.cli.exits import ExitStatus
from forewarn.cli.operator import OperatorClient, asks
from forewarn.cli.options import argument

if TYPE_CHECKING:
    from forewarn.server.operator import schemas

clock = typer.Typer(help="Confirm that the service's clock is right.", no_args_is_help=True)


@asks
def alerts(*, service: OperatorClient) -> None:
    """List what needs an operator, the oldest first.

    Exit status: 0 without alerts, 11 with some.
    """
    answer = service.get("/v1/alerts")
    answer.show(_draw)
    if answer.tree()["count"]:
        raise typer.Exit(ExitStatus.ALERTS)


@asks
def acknowledge(
    references: Annotated[
        list[str], argument("REF", "Operations that are over (12.1), or maintenances (12).")
    ],
    *,
    service: OperatorClient,
) -> None:
    """Acknowledge failures, and end the wait for machines.

    The update domains then count as up, and what waited for them goes on. Each must have failed, or
    wait for machines after its end; otherwise none is acknowledged. The history records who did it.
    """
    answer = service.post("/v1/acknowledgements", references=references)
    answer.show(operations.states)


@asks
def resolve(
    references: Annotated[list[str], argument("REF", "Operations (12.1), or maintenances (12).")],
    verdict: Annotated[
        Literal["succeeded", "failed", "repeat"],
        argument("RESULT", "succeeded, failed or repeat."),
    ],
    *,
    service: OperatorClient,
) -> None:
    """Record the result of operations whose outcome is unknown.

    'repeat' reruns the machines whose result is unknown. If the outcome of one is known, none is
    recorded.
    """
    answer = service.post("/v1/resolutions", references=references, verdict=verdict)
    answer.show(operations.states)


@asks
def replicas(*, service: OperatorClient) -> None:
    """List the replicas that share the database.

    With SQLite there is one.
    """
    service.get("/v1/replicas").show(_draw_replicas)


@clock.callback()
def _clock() -> None:
    # Without this Typer would make a group of one command that command.
    pass


@clock.command()
@asks
def trust(*, service: OperatorClient) -> None:
    """Confirm that the service's clock is right.

    The service doubts it after it has jumped, and starts nothing. If it was set forward, every
    notice is extended; if it was set back, nothing moves.
    """
    tree = service.post("/v1/clock", trust=True).tree()
    if service.as_json:
        output.document(tree)
    else:
        output.say(f"The clock is trusted: it is {tree['now']}.")


def _draw_replicas(found: "schemas.ReplicaList") -> None:
    output.table(
        found.replicas,
        {
            "NAME": lambda replica: f"{replica.name}{' (this)' if replica.this else ''}",
            "VERSION": lambda replica: replica.version,
            "STATE": _state,
            "LAST BEAT": lambda replica: replica.beat_at,
            "BEHIND": lambda replica: f"{replica.behind_ms / 1000:.1f} s",
            "CLOCK": lambda replica: f"{replica.clock_ahead_ms / 1000:+.1f} s",
            "CLAIMS": lambda replica: replica.claims,
        },
        empty="There are no replicas.",
    )


def _state(replica: "schemas.ReplicaView") -> str:
    if not replica.live:
        return "silent"
    if not replica.serving:
        return "closed to guests"
    return "doubts the clock" if replica.doubts_clock else "serving"


def _draw(found: "schemas.AlertList") -> None:
    output.table(
        found.items,
        {
            "KIND": lambda alert: alert.kind,
            "ABOUT": lambda alert: alert.about,
            "SINCE": lambda alert: alert.since,
            "WHAT": lambda alert: alert.message,
        },
        empty="There are no alerts.",
    )
    from forewarn.maintenance.alerts import remedy

    if found.count > len(found.items):
        output.note(f"These are the oldest {len(found.items)} of {found.count}.")
    if remedies := dict.fromkeys(filter(None, map(remedy, found.items))):
        output.note("Once you know the cause:")
        for command in remedies:
            output.note(f"  forewarn {command}")
