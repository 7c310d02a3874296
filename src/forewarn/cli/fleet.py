"""`forewarn fleet`: the machines and their scopes."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from forewarn.cli import fleet_file, output, times
from forewarn.cli.exits import ExitStatus, Failed
from forewarn.cli.operator import (
    AllOption,
    Answer,
    CursorOption,
    JsonOption,
    LimitOption,
    OperatorClient,
    OperatorOption,
    Query,
    more,
    pages,
    segment,
    who,
)

if TYPE_CHECKING:
    from forewarn.server.operator import schemas

MAX_COMPARED: Final = 1000
"""The names that are compared with one that does not exist: one page of a list."""

app = typer.Typer(help="Apply a fleet file; list, show and remove machines.", no_args_is_help=True)


@app.command()
def apply(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="The fleet, TOML or JSON; '-' for stdin.")
    ],
    *,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove machines that are not in the file.")
    ] = False,
    allow_empty: Annotated[
        bool, typer.Option("--allow-empty", help="Let --prune remove the last machine.")
    ] = False,
    again: Annotated[
        bool,
        typer.Option("--again", help="Add machines again that were preempted or terminated."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would change.")
    ] = False,
    as_json: JsonOption = False,
    operator: OperatorOption = None,
) -> None:
    """Apply a fleet file, all of it or nothing.

    Machines that are not in the file stay, unless --prune is given.
    """
    fleet = fleet_file.read(file)
    query: Query = {
        "prune": prune,
        "allow_empty": allow_empty,
        "again": again,
        "dry_run": dry_run,
        "by": who(),
    }
    try:
        answer = OperatorClient(operator).ask("PUT", "/v1/fleet", query=query, body=fleet.body)
    except Failed as failed:
        raise fleet.blamed(failed) from failed
    _show_change(answer, as_json=as_json)


@app.command("list")
def list_(
    *,
    scopes: Annotated[bool, typer.Option("--scopes", help="List scopes, not machines.")] = False,
    lost: Annotated[
        bool, typer.Option("--lost", help="List machines that were preempted or terminated.")
    ] = False,
    scope: Annotated[
        str, typer.Option("--scope", metavar="NAME", help="Only machines of this scope.")
    ] = "",
    host: Annotated[
        str,
        typer.Option(
            "--host",
            metavar="NAME",
            help="Only machines on this host; 'unknown' for machines without a host.",
        ),
    ] = "",
    limit: LimitOption = 100,
    cursor: CursorOption = "",
    whole: AllOption = False,
    as_json: JsonOption = False,
    operator: OperatorOption = None,
) -> None:
    """List machines, or scopes, or machines that are gone."""
    from forewarn.server.operator import schemas

    if (scopes or lost) and (scope or host):
        flag = "--scopes" if scopes else "--lost"
        raise typer.BadParameter(f"{flag} excludes --scope and --host")
    if scopes and lost:
        raise typer.BadParameter("--scopes excludes --lost")
    kind = "scopes" if scopes else "tombstones" if lost else "machines"
    query: Query = {"scope": scope, "host": host, "limit": limit, "cursor": cursor}
    answer = pages(OperatorClient(operator), f"/v1/fleet/{kind}", kind, whole=whole, query=query)
    if scopes:
        answer.show(schemas.ScopePage, _draw_scopes, as_json=as_json)
    elif lost:
        answer.show(schemas.TombstonePage, _draw_lost, as_json=as_json)
    else:
        answer.show(schemas.MachinePage, _draw_machines, as_json=as_json)


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of a machine or a scope.")],
    *,
    as_json: JsonOption = False,
    operator: OperatorOption = None,
) -> None:
    """Show a machine or a scope.

    For a standalone machine, which is a scope too, it shows the machine.
    """
    from forewarn.server.operator import schemas

    service = OperatorClient(operator)
    try:
        answer = service.get(f"/v1/fleet/machines/{segment(name)}")
    except Failed as no_machine:
        if no_machine.status is not ExitStatus.NOT_FOUND:
            raise
        try:
            answer = service.get(f"/v1/fleet/scopes/{segment(name)}")
        except Failed as failed:
            if failed.status is ExitStatus.NOT_FOUND:
                message = f"no machine and no scope named {name!r}{_suggestion(service, name)}"
                raise Failed(ExitStatus.NOT_FOUND, message) from failed
            raise
        answer.show(schemas.ScopeDetail, _draw_scope, as_json=as_json)
    else:
        answer.show(schemas.MachineDetail, _draw_machine, as_json=as_json)


@app.command()
def remove(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Names of machines.")],
    *,
    as_json: JsonOption = False,
    operator: OperatorOption = None,
) -> None:
    """Remove machines from the fleet.

    If one is unknown, or has a live event, none is removed.
    """
    query: Query = {"name": names, "by": who()}
    answer = OperatorClient(operator).ask("DELETE", "/v1/fleet/machines", query=query)
    _show_change(answer, as_json=as_json)


def _suggestion(service: OperatorClient, name: str) -> str:
    """Return the most similar name of the first thousand machines and scopes."""
    import difflib

    names = [
        entry["name"]
        for kind in ("machines", "scopes")
        for entry in service.get(f"/v1/fleet/{kind}", limit=MAX_COMPARED).tree()[kind]
    ]
    near = difflib.get_close_matches(name, names, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ": see 'forewarn fleet list'"


def _show_change(answer: Answer, *, as_json: bool) -> None:
    from forewarn.server.operator import schemas

    answer.show(schemas.FleetChange, _draw_change, as_json=as_json)
    for warning in answer.tree().get("warnings", ()):
        output.note(f"warning: {warning}")


def _draw_change(change: "schemas.FleetChange") -> None:
    def listed(names: "schemas.Names") -> str:
        return output.listed(names.names, names.count)

    would = "would be " if change.dry_run else ""
    done = (("added", change.added), ("changed", change.changed), ("removed", change.removed))
    for what, names in done:
        if names.count:
            output.say(f"{names.count} {would}{what}: {listed(names)}")
    if change.unchanged:
        output.say(f"{change.unchanged} unchanged")
    kept, gone = change.missing, change.tombstones
    if kept.count:
        output.say(f"{kept.count} not in the file, kept (--prune removes them): {listed(kept)}")
    if gone.count:
        output.say(
            f"{gone.count} preempted or terminated, not added (--again adds them): {listed(gone)}"
        )
    if not any(names.count for _, names in done):
        output.say("nothing would change" if change.dry_run else "nothing changed")


def _draw_machines(page: "schemas.MachinePage") -> None:
    named = any(machine.listener for machine in page.machines)
    output.table(
        page.machines,
        {
            "MACHINE": lambda machine: machine.name,
            "SCOPE": lambda machine: machine.scope,
            "KIND": lambda machine: machine.kind,
            "DOMAIN": lambda machine: str(machine.update_domain),
            "HOST": lambda machine: machine.host or "-",
            "ADDRESS": lambda machine: machine.address or "-",
            **({"LISTENER": lambda machine: machine.listener or "-"} if named else {}),
            "LAST SEEN": lambda machine: times.shown(
                machine.last_seen.at if machine.last_seen else None
            ),
            "BY": lambda machine: machine.last_seen.version if machine.last_seen else "-",
            "EVENTS": lambda machine: str(len(machine.events)),
        },
        empty="There are no machines: 'forewarn fleet apply FILE' adds them.",
    )
    more(page.next)


def _draw_scopes(page: "schemas.ScopePage") -> None:
    output.table(
        page.scopes,
        {
            "SCOPE": lambda scope: scope.name,
            "KIND": lambda scope: scope.kind,
            "MACHINES": lambda scope: str(scope.machines),
            "DOMAINS": lambda scope: str(scope.update_domains),
            "PRIORITY": lambda scope: scope.priority,
            "INCARNATION": lambda scope: str(scope.incarnation),
            "EVENTS": lambda scope: str(len(scope.events)),
        },
        empty="There are no scopes: 'forewarn fleet apply FILE' adds them.",
    )
    more(page.next)


def _draw_lost(page: "schemas.TombstonePage") -> None:
    output.table(
        page.tombstones,
        {
            "MACHINE": lambda one: one.name,
            "LOST BY": lambda one: one.event_type or "Removed",
            "OPERATION": lambda one: one.operation,
            "AT": lambda one: times.shown(one.at),
        },
        empty="No machine was preempted or terminated.",
    )
    more(page.next)


def _draw_machine(machine: "schemas.MachineDetail") -> None:
    seen = machine.last_seen
    output.pairs(
        [
            ("machine", machine.name),
            ("scope", f"{machine.scope} ({machine.kind})"),
            ("update domain", str(machine.update_domain)),
            ("fault domain", str(machine.fault_domain)),
            ("host", machine.host or "-"),
            ("address", machine.address or "-"),
            *([("listener", machine.listener)] if machine.listener else []),
            ("vm id", machine.vm_id),
            *([("role", machine.role)] if machine.role else []),
            ("tags", ", ".join(f"{k}={v}" for k, v in machine.tags.items()) or "-"),
            *((name.replace("_", " "), value) for name, value in machine.profile.items() if value),
            ("last seen", f"{times.shown(seen.at)} by {seen.version}" if seen else "never"),
            ("live events", ", ".join(machine.events) or "-"),
        ]
    )


def _draw_scope(scope: "schemas.ScopeDetail") -> None:
    minutes = scope.terminate_notice_minutes
    output.pairs(
        [
            ("scope", scope.name),
            ("kind", scope.kind),
            ("priority", scope.priority),
            ("approves by itself", ", ".join(scope.automatically_approve) or "nothing"),
            ("notice of a deletion", f"{minutes} min" if minutes else "none"),
            ("incarnation", str(scope.incarnation)),
            ("machines", str(scope.machines)),
            *(
                (
                    f"update domain {domain.number}",
                    output.listed(domain.machines.names, domain.machines.count, 20) or "-",
                )
                for domain in scope.domains
            ),
            ("live events", ", ".join(scope.events) or "-"),
        ]
    )
