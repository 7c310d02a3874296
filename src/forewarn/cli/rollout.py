"""`forewarn rollout`: maintenance of many units by a policy."""

import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from forewarn import times
from forewarn.cli import follow, output
from forewarn.cli.operator_client import OperatorClient, asks, asks_for_pages
from forewarn.cli.options import argument, flag, option

if TYPE_CHECKING:
    from forewarn.server.operator import rollout_schemas

NEWS: Final = ("rollout", "host", "maintenance", "operation")
"""The kinds of news after which a rollout may be further."""

SHOWN_UNITS: Final = 6
"""Names of units in one line."""

ROLLOUT_ORDERS: Final = {
    "pause": "Begin no further unit; what is announced goes on.",
    "resume": "Go on after a pause or a halt, or begin the next wave.\n\n"
    "Units that failed stay failed, and no longer halt the rollout.",
    "stop": "End a rollout and cancel what has not started.\n\n"
    "Drains of hosts that have begun go on: 'forewarn host undrain' ends them.",
}
UNIT_ORDERS: Final = {"skip": "Leave a unit out.", "retry": "Try a failed or skipped unit again."}
"""What an operator can do about a rollout, and about a unit of it, and the help of each."""

app = typer.Typer(help="Plan, start and watch rollouts.", no_args_is_help=True)

NumberArgument = Annotated[int, argument("NUMBER", "The rollout.", min=1)]
UnitArgument = Annotated[str, argument("UNIT", "A unit of the rollout: a host, scope or machine.")]
TypeArgument = Annotated[
    Literal["reboot", "redeploy", "freeze", "preempt", "terminate"],
    argument(
        "TYPE",
        "reboot or freeze (at least 15 minutes of notice), redeploy (10 minutes), preempt (30 "
        "seconds), or terminate (what its scale set sets).",
        case_sensitive=False,
    ),
]
HostOption = Annotated[list[str] | None, option("--host", "NAME", "A host. Repeatable.")]
AllHostsOption = Annotated[bool, flag("--all-hosts", "Every host.")]
ScopeOption = Annotated[list[str] | None, option("--scope", "NAME", "A scope. Repeatable.")]
MachineOption = Annotated[list[str] | None, option("--machine", "NAME", "A machine. Repeatable.")]
TagOption = Annotated[
    list[str] | None,
    option("--tag", "KEY=VALUE", "Machines with this tag; repeated: with all of these tags."),
]
AtOnceOption = Annotated[
    str, option("--at-once", "N|N%", "The most units under way: a number, or a percentage of all.")
]
WavesOption = Annotated[
    str, option("--waves", "LIST", "The size of each wave, such as 1,10%,rest. Default: one wave.")
]
PauseOption = Annotated[
    str,
    option("--pause", "SPAN|confirm", "A pause between waves; confirm waits for 'rollout resume'."),
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
NoticeOption = Annotated[
    str, option("--notice", "SPAN", "A notice longer than the least of the type, such as 30m.")
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
DurationOption = Annotated[
    str,
    option(
        "--duration",
        "SPAN",
        "The expected interruption: seconds, 30s or 5m; 0 for none, -1 for unknown.",
    ),
]
DescriptionOption = Annotated[
    str | None,
    option(
        "--description", "TEXT", "The text for the guests. Default: the usual text of the type."
    ),
]
WithoutNoticeOption = Annotated[
    bool,
    flag(
        "--without-notice",
        "Go on even if some guests get no notice, because they never asked for events.",
    ),
]
NoDrainOption = Annotated[
    bool,
    flag("--no-drain", "Do not drain hosts: their machines stop while the host is maintained."),
]


def _asking(text: str, *, dry_run: bool) -> Callable[..., None]:
    def command(
        kind: TypeArgument,
        *,
        host: HostOption = None,
        all_hosts: AllHostsOption = False,
        scope: ScopeOption = None,
        machine: MachineOption = None,
        tag: TagOption = None,
        at_once: AtOnceOption = "1",
        waves: WavesOption = "",
        pause: PauseOption = "0",
        spread: SpreadOption = "",
        window: WindowOption = None,
        zone: ZoneOption = "UTC",
        blackout: BlackoutOption = None,
        cutoff: CutoffOption = "0",
        notice: NoticeOption = "0",
        stop_after: StopAfterOption = 1,
        order: OrderOption = "tightest",
        until: ApprovalUntilOption = "",
        check: CheckOption = "",
        check_tries: CheckTriesOption = 3,
        check_within: CheckWithinOption = "5m",
        duration: DurationOption = "-1",
        description: DescriptionOption = None,
        without_notice: WithoutNoticeOption = False,
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
        ask(
            service,
            dry_run=dry_run,
            event_type=kind.capitalize(),
            hosts=host or [],
            all_hosts=all_hosts,
            scopes=scope or [],
            machines=machine or [],
            tags=tags_of(tag or []),
            duration_seconds=times.duration_seconds(duration),
            description=description,
            without_notice=without_notice,
            drain=not no_drain,
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
        "Show how a rollout would go.\n\n"
        "It lists the waves, their machines, and the earliest and the latest end.",
        dry_run=True,
    )
)
app.command("start")(
    _asking(
        "Start a rollout: maintenance of many units, one after another.\n\n"
        "A host, a scope or a machine is a unit. Each is announced and carried out as any other "
        "maintenance. The rollout halts when a unit fails. Hosts that the connector can drain are "
        "drained and rebooted.",
        dry_run=False,
    )
)


@app.command("list")
@asks_for_pages
def list_(*, service: OperatorClient) -> None:
    """List rollouts, the newest first."""
    service.pages("/v1/rollouts", "rollouts").show(_draw_list)


@app.command()
@asks
def show(number: NumberArgument, *, service: OperatorClient) -> None:
    """Show a rollout, its units, and when it will end."""
    service.get(f"/v1/rollouts/{number}").show(_draw)


@app.command()
@asks
def watch(number: NumberArgument, *, service: OperatorClient) -> None:
    """Show what changes until a rollout is over.

    Exit status: 0 when all units are done, 11 when it halts, is paused or stopped, or waits for
    you.
    """
    _wait(service, number)


def _wait(service: OperatorClient, number: int, first: Callable[[], None] = lambda: None) -> None:
    from forewarn.server.operator import rollout_schemas

    def look() -> follow.Progress:
        answer = service.get(f"/v1/rollouts/{number}")
        detail = answer.read(rollout_schemas.RolloutDetail)
        rollout = detail.rollout
        rests = rollout.state != "running" and not rollout.units.running
        needs = rollout.state != "done" and (rests or rollout.unconfirmed)
        why = f"rollout {number} is {_state(rollout)}" if needs else ""
        facts = dict(_facts(detail))
        return follow.Progress(rollout.state == "done", why, answer.tree, facts)

    shown_by = f"forewarn rollout show {number}"
    follow.wait(service, look, types=NEWS, shown_by=shown_by, first=first)


def _command(order: str) -> Callable[..., None]:
    def of_rollout(number: NumberArgument, *, service: OperatorClient) -> None:
        _order(service, number, order)

    def of_unit(number: NumberArgument, unit: UnitArgument, *, service: OperatorClient) -> None:
        _order(service, number, order, unit)

    return asks(of_unit if order in UNIT_ORDERS else of_rollout)


for _name, _text in (ROLLOUT_ORDERS | UNIT_ORDERS).items():
    app.command(_name, help=_text)(_command(_name))


def ask(
    service: OperatorClient,
    *,
    dry_run: bool,
    wait: bool = False,
    **body: Any,  # noqa: ANN401 - JSON
) -> None:
    """Plan or start a rollout, and show how it will go; or wait for its end, too."""
    path = "/v1/rollouts?dry_run=true" if dry_run else "/v1/rollouts"
    plan = service.post(path, **body)
    if wait:
        _wait(service, plan.tree()["rollout"]["number"], lambda: plan.show(_draw_plan))
    else:
        plan.show(_draw_plan)


def tags_of(texts: list[str]) -> dict[str, str]:
    """Read tags written as KEY=VALUE."""
    from forewarn.maintenance import rollout_model

    try:
        return rollout_model.read_tags(texts)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _seconds(text: str) -> int:
    return int(times.span(text).total_seconds())


def _blackout(text: str) -> dict[str, str]:
    opens, closes = times.interval(text)
    return {"opens": opens.isoformat(), "closes": closes.isoformat()}


def _order(service: OperatorClient, number: int, order: str, unit: str = "") -> None:
    def draw(detail: "rollout_schemas.RolloutDetail") -> None:
        rollout = detail.rollout
        for each in detail.units:
            if unit and each.name.lower() == unit.lower():
                output.say(output.printable(f"{unit} is {each.state}"))
        output.say(output.printable(f"rollout {rollout.number} is {_state(rollout)}"))
        if unit and rollout.state in {"paused", "halted"}:
            output.note(f"'forewarn rollout resume {number}' lets it go on.")

    service.post(f"/v1/rollouts/{number}/orders", order=order, unit=unit).show(draw)


def _facts(detail: "rollout_schemas.RolloutDetail") -> Iterator[tuple[str, str]]:
    rollout = detail.rollout
    yield f"rollout {rollout.number}", _state(rollout)
    for unit in detail.units:
        if unit.state != "waiting" or unit.reason:
            yield unit.name, f"{unit.state}: {unit.reason}" if unit.reason else str(unit.state)


def _state(rollout: "rollout_schemas.RolloutView") -> str:
    return f"{rollout.state}: {rollout.reason}" if rollout.reason else str(rollout.state)


def _progress(rollout: "rollout_schemas.RolloutView") -> str:
    units = rollout.units
    counts = {
        "done": units.done,
        "running": units.running,
        "failed": units.failed,
        "skipped": units.skipped,
        "waiting": units.waiting,
    }
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


def _draw_plan(plan: "rollout_schemas.RolloutPlan") -> None:
    if plan.dry_run:
        output.note("Nothing is scheduled: this is a plan.")
    else:
        output.say(f"rollout {plan.rollout.number}: {plan.rollout.event_type}")
    output.table(
        plan.plan.waves,
        {
            "WAVE": lambda wave: wave.number,
            "UNITS": lambda wave: len(wave.units),
            "MACHINES": lambda wave: wave.machines,
            "NAMES": lambda wave: output.listed(wave.units, None, SHOWN_UNITS),
        },
        empty="No unit can start.",
    )
    for note in plan.plan.notes:
        output.note(note)
    if plan.plan.without_machines:
        names = output.listed(plan.plan.without_machines)
        output.note(f"warning: left out, without machines: {names}")


def _draw_list(page: "rollout_schemas.RolloutPage") -> None:
    output.table(
        page.rollouts,
        {
            "NUMBER": lambda one: one.number,
            "TYPE": lambda one: one.event_type,
            "STATE": lambda one: one.state,
            "WAVE": lambda one: f"{one.wave}/{one.waves}",
            "UNITS": _progress,
            "REQUESTED BY": lambda one: one.requested_by,
            "AT": lambda one: one.requested_at,
            "REASON": lambda one: one.reason,
        },
        empty="There is no rollout yet: see 'forewarn rollout plan --help'.",
    )


def _draw(detail: "rollout_schemas.RolloutDetail") -> None:
    rollout, policy = detail.rollout, detail.policy
    output.pairs(
        [
            ("rollout", rollout.number),
            ("type", rollout.event_type),
            ("state", _state(rollout)),
            ("units", _progress(rollout)),
            ("wave", f"{rollout.wave} of {rollout.waves}"),
            ("at once", policy.at_once),
            *([("check", policy.check)] if policy.check else []),
            *(
                [("windows", f"{', '.join(policy.windows)} {policy.zone}")]
                if policy.windows
                else []
            ),
            ("requested", f"{times.shown(rollout.requested_at)} by {rollout.requested_by or '-'}"),
            *([("ordered by", rollout.changed_by)] if rollout.changed_by else []),
        ]
    )
    output.say("")
    output.table(
        detail.units,
        {
            "UNIT": lambda unit: unit.name,
            "KIND": lambda unit: unit.kind,
            "WAVE": lambda unit: unit.wave,
            "STATE": lambda unit: unit.state,
            "BY": lambda unit: "drain" if unit.drain else unit.maintenance or None,
            "SINCE": lambda unit: unit.changed_at,
            "REASON": lambda unit: unit.reason,
        },
    )
