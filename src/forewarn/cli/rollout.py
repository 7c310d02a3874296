"""`forewarn rollout`: maintenance whose units take their turns by a policy."""

import inspect
from collections.abc import Callable
from typing import Annotated, Literal

import typer

from forewarn import times
from forewarn.cli import follow, maintenance
from forewarn.cli.operator_client import OperatorClient, asks
from forewarn.cli.options import flag, option

app = typer.Typer(help="Plan and start maintenance by a policy.", no_args_is_help=True)

HostOption = Annotated[list[str] | None, option("--host", "NAME", "A host. Repeatable.")]
AllHostsOption = Annotated[bool, flag("--all-hosts", "Every host.")]
ScopeOption = Annotated[list[str] | None, option("--scope", "NAME", "A scope. Repeatable.")]
MachineOption = Annotated[list[str] | None, option("--machine", "NAME", "A machine. Repeatable.")]
AtOnceOption = Annotated[
    str, option("--at-once", "N|N%", "The most units under way: a number, or a percentage of all.")
]
WavesOption = Annotated[
    str, option("--waves", "LIST", "The size of each wave, such as 1,10%,rest. Default: one wave.")
]
PauseOption = Annotated[
    str,
    option(
        "--pause", "SPAN|confirm", "A pause between waves; confirm waits for 'maintenance resume'."
    ),
]
SpreadOption = Annotated[
    str,
    option("--spread", "BY", "host, fault-domain or tag:KEY: no two units at once that share it."),
]
WindowOption = Annotated[
    list[str] | None,
    option(
        "--window",
        "WHEN",
        "When units may start: 'Sat,Sun 22:00-04:00', or 'Sat 20:00-Mon 04:00'. Repeatable.",
    ),
]
ZoneOption = Annotated[
    str, option("--zone", "ZONE", "The time zone of the windows, such as Europe/Berlin.")
]
BlackoutOption = Annotated[
    list[str] | None,
    option("--blackout", "FROM/TO", "Two RFC 3339 times between which nothing starts. Repeatable."),
]
CutoffOption = Annotated[
    str, option("--cutoff", "SPAN", "Begin no unit in the last part of a window, such as 30m.")
]
StopAfterOption = Annotated[
    int, option("--stop-after", "N", "Halt when this many units have failed.", min=1, max=5000)
]
OrderOption = Annotated[
    Literal["tightest", "listed"],
    option("--order", "ORDER", "tightest: as many at once as possible; listed: as given."),
]
ApprovalUntilOption = Annotated[
    str,
    option("--approval-until", "TIME", "Until then, start nothing without its guests' approval."),
]
CheckOption = Annotated[
    str, option("--check", "NAME", "A check from the settings that must pass after each unit.")
]
CheckTriesOption = Annotated[
    int, option("--check-tries", "N", "How often the check may fail in a row.", min=1, max=100)
]
CheckWithinOption = Annotated[
    str, option("--check-within", "SPAN", "How long all tries of the check may take.")
]
NoDrainOption = Annotated[
    bool,
    flag("--no-drain", "Do not drain hosts: their machines stop while the host is maintained."),
]


def _asking(text: str, *, dry_run: bool) -> Callable[..., None]:
    def command(
        kind: maintenance.TypeArgument,
        *,
        host: HostOption = None,
        all_hosts: AllHostsOption = False,
        scope: ScopeOption = None,
        machine: MachineOption = None,
        tag: maintenance.TagOption = None,
        at_once: AtOnceOption = "1",
        waves: WavesOption = "",
        pause: PauseOption = "0",
        spread: SpreadOption = "",
        window: WindowOption = None,
        zone: ZoneOption = "UTC",
        blackout: BlackoutOption = None,
        cutoff: CutoffOption = "0",
        notice: maintenance.NoticeOption = "0",
        stop_after: StopAfterOption = 1,
        order: OrderOption = "tightest",
        until: ApprovalUntilOption = "",
        check: CheckOption = "",
        check_tries: CheckTriesOption = 3,
        check_within: CheckWithinOption = "5m",
        duration: maintenance.DurationOption = "-1",
        description: maintenance.DescriptionOption = None,
        without_notice: maintenance.WithoutNoticeOption = False,
        no_drain: NoDrainOption = False,
        wait: follow.WaitOption = False,
        service: OperatorClient,
    ) -> None:
        policy: dict[str, object] = {
            "at_once": at_once,
            "waves": [wave.strip() for wave in waves.split(",") if wave.strip()],
            "pause_seconds": -1 if pause == "confirm" else _seconds(pause),
            "spread": spread,
            "windows": window or [],
            "zone": zone,
            "blackouts": [_blackout(text) for text in blackout or ()],
            "cutoff_seconds": _seconds(cutoff),
            "notice_seconds": _seconds(notice),
            "stop_after": stop_after,
            "order": order,
            "check": check,
            "check_tries": check_tries,
            "check_within_seconds": _seconds(check_within),
            "approval_until": service.moment(times.moment(until)) if until else None,
        }
        maintenance.ask(
            service,
            dry_run=dry_run,
            event_type=kind.capitalize(),
            hosts=host or [],
            all_hosts=all_hosts,
            scopes=scope or [],
            machines=machine or [],
            tags=maintenance.tags_of(tag or []),
            duration_seconds=times.duration_seconds(duration),
            description=description,
            without_notice=without_notice,
            drain=not no_drain and kind == "reboot" and bool(host or all_hosts),
            policy=policy,
            wait=wait,
        )

    return asks(_described(command, text, dry_run=dry_run))


def _described(command: Callable[..., None], text: str, *, dry_run: bool) -> Callable[..., None]:
    """Give a command its help; a plan has no end to wait for."""
    command.__doc__ = text
    if not dry_run:
        return command
    whole = inspect.signature(command)
    kept = [one for name, one in whole.parameters.items() if name != "wait"]
    command.__signature__ = whole.replace(parameters=kept)  # type: ignore[attr-defined] # Typer's
    return command


app.command("plan")(
    _asking(
        "Show how maintenance by a policy would go.\n\n"
        "It lists the waves, their machines, and what goes first.",
        dry_run=True,
    )
)
app.command("start")(
    _asking(
        "Start maintenance of many units, one after another.\n\n"
        "A host, an update domain of a scope, or a machine is a unit. It halts when a unit fails: "
        "'forewarn maintenance' shows it, and lets it go on. For a reboot, hosts that the "
        "connector can drain are drained.",
        dry_run=False,
    )
)


def _seconds(text: str) -> int:
    return int(times.span(text).total_seconds())


def _blackout(text: str) -> dict[str, str]:
    opens, closes = times.interval(text)
    return {"opens": opens.isoformat(), "closes": closes.isoformat()}
