"""`forewarn fleet`: what machines there are."""

from typing import TYPE_CHECKING, Annotated

import typer

from forewarn.cli import fleet_file, output, times
from forewarn.cli.exits import ExitStatus, Failed
from forewarn.cli.operator import (
    AllOption,
    Answer,
    CursorOption,
    JsonOption,
    LimitOption,
    OperatorOption,
    Query,
    Service,
    more,
    pages,
    segment,
    who,
)

if TYPE_CHECKING:
    from forewarn.server.operator import schemas

app = typer.Typer(help="Apply a fleet file; list, show, remove machines.", no_args_is_help=True)


@app.command()
def apply(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="The fleet, TOML or JSON; '-' reads stdin.")
    ],
    *,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove machines that the file does not name.")
    ] = False,
    allow_empty: Annotated[
        bool,
        typer.Option("--allow-empty", help="Let --prune remove the last machine of the fleet."),
    ] = False,
    again: Annotated[
        bool,
        typer.Option("--again", help="Add machines again that were preempted or terminated."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only tell what would change.")
    ] = False,
    as_json: JsonOption = False,
    operator: OperatorOption = None,
) -> None:
    """Make the fleet be as a file says.

    All of it or nothing. Machines that the file does not name stay unless --prune is given.
    """
    fleet = fleet_file.read(file)
    flags = {
        "prune": _flag(prune),
        "allow_empty": _flag(allow_empty),
        "again": _flag(again),
        "dry_run": _flag(dry_run),
    }
    try:
        answer = Service(operator).ask(
            "PUT", "/v1/fleet", query=flags | {"by": who()}, body=fleet.body
        )
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
            help="Only machines on this host; 'unknown' for no known one.",
        ),
    ] = "",
    limit: LimitOption = 100,
    cursor: CursorOption = "",
    whole: AllOption = False,
    as_json: JsonOption = False,
    operator: OperatorOption = None,
) -> None:
    """List machines, or scopes, or machines that are gone."""
    if (scopes or lost) and (scope or host):
        flag = "--scopes" if scopes else "--lost"
        raise typer.BadParameter(f"{flag} goes with neither --scope nor --host")
    if scopes and lost:
        raise typer.BadParameter("either --scopes or --lost, not both")
    kind = "scopes" if scopes else "tombstones" if lost else "machines"
    query: Query = {"scope": scope, "host": host, "limit": limit, "cursor": cursor}
    answer = pages(Service(operator), f"/v1/fleet/{kind}", kind, whole=whole, query=query)
    if as_json:
        output.document(answer.tree())
    elif scopes:
        _list_scopes(answer)
    elif lost:
        _list_lost(answer)
    else:
        _list_machines(answer)


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A machine's or a scope's name.")],
    *,
    as_json: JsonOption = False,
    operator: OperatorOption = None,
) -> None:
    """Show one machine or scope.

    A standalone machine is a scope of its own; its name shows the machine.
    """
    from forewarn.server.operator import schemas

    service = Service(operator)
    try:
        answer = service.get(f"/v1/fleet/machines/{segment(name)}")
    except Failed as failed:
        if failed.status is not ExitStatus.NOT_FOUND:
            raise
        answer = _scope(service, name)
        if not as_json:
            _show_scope(answer.read(schemas.ScopeDetail))
            return
    if as_json:
        output.document(answer.tree())
        return
    _show_machine(answer.read(schemas.MachineDetail))


@app.command()
def remove(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Machines' names.")],
    *,
    as_json: JsonOption = False,
    operator: OperatorOption = None,
) -> None:
    """Take machines out of the fleet.

    All of them or, if one cannot be removed, none.
    """
    query: Query = {"name": names, "by": who()}
    answer = Service(operator).ask("DELETE", "/v1/fleet/machines", query=query)
    _show_change(answer, as_json=as_json)


def _scope(service: Service, name: str) -> Answer:
    try:
        return service.get(f"/v1/fleet/scopes/{segment(name)}")
    except Failed as failed:
        if failed.status is not ExitStatus.NOT_FOUND:
            raise
        message = f"no machine and no scope is called {name!r}: see 'forewarn fleet list'"
        raise Failed(ExitStatus.NOT_FOUND, message) from failed


def _flag(given: bool) -> str:  # noqa: FBT001 - a flag of the command line on its way to a query
    return "true" if given else ""


def _show_change(answer: Answer, *, as_json: bool) -> None:
    tree = answer.tree()
    if as_json:
        output.document(tree)
    else:
        from forewarn.server.operator import schemas

        _tell_change(answer.read(schemas.FleetChange))
    for warning in tree.get("warnings", ()):
        output.note(f"warning: {warning}")


def _tell_change(change: "schemas.FleetChange") -> None:
    would = "would be " if change.dry_run else ""
    for what, names in (
        ("added", change.added),
        ("changed", change.changed),
        ("removed", change.removed),
    ):
        if names.count:
            typer.echo(f"{names.count} {would}{what}: {output.listed(names.names, names.count)}")
    if change.unchanged:
        typer.echo(f"{change.unchanged} unchanged")
    if change.missing.count:
        named = output.listed(change.missing.names, change.missing.count)
        typer.echo(f"{change.missing.count} not in the file, kept (--prune removes them): {named}")
    if change.tombstones.count:
        gone = change.tombstones
        named = output.listed(gone.names, gone.count)
        typer.echo(f"{gone.count} preempted or terminated, left out (--again adds them): {named}")
    if not (change.added.count or change.changed.count or change.removed.count):
        typer.echo("nothing would change" if change.dry_run else "nothing changed")


def _list_machines(answer: Answer) -> None:
    from forewarn.server.operator import schemas

    page = answer.read(schemas.MachinePage)
    placed = any(machine.listener for machine in page.machines)
    at = ("ADDRESS", "LISTENER") if placed else ("ADDRESS",)
    output.table(
        ("MACHINE", "SCOPE", "KIND", "DOMAIN", "HOST", *at, "LAST SEEN", "BY", "EVENTS"),
        (
            (
                machine.name,
                machine.scope,
                machine.kind,
                str(machine.update_domain),
                machine.host or "-",
                machine.address or "-",
                *([machine.listener or "-"] if placed else []),
                times.shown(machine.last_seen.at if machine.last_seen else None),
                machine.last_seen.version if machine.last_seen else "-",
                str(len(machine.events)),
            )
            for machine in page.machines
        ),
        empty="There are no machines: 'forewarn fleet apply FILE' adds them.",
    )
    more(page.next)


def _list_scopes(answer: Answer) -> None:
    from forewarn.server.operator import schemas

    page = answer.read(schemas.ScopePage)
    output.table(
        ("SCOPE", "KIND", "MACHINES", "DOMAINS", "PRIORITY", "INCARNATION", "EVENTS"),
        (
            (
                scope.name,
                scope.kind,
                str(scope.machines),
                str(scope.update_domains),
                scope.priority,
                str(scope.incarnation),
                str(len(scope.events)),
            )
            for scope in page.scopes
        ),
        empty="There are no scopes: 'forewarn fleet apply FILE' adds them.",
    )
    more(page.next)


def _list_lost(answer: Answer) -> None:
    from forewarn.server.operator import schemas

    page = answer.read(schemas.TombstonePage)
    output.table(
        ("MACHINE", "LOST BY", "OPERATION", "AT"),
        ((one.name, one.event_type, one.operation, times.shown(one.at)) for one in page.tombstones),
        empty="No machine was preempted or terminated.",
    )
    more(page.next)


def _show_machine(machine: "schemas.MachineDetail") -> None:
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


def _show_scope(scope: "schemas.ScopeDetail") -> None:
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
