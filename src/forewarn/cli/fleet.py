"""`forewarn fleet`: the machines and their scopes."""

from typing import TYPE_CHECKING, Annotated

import typer

from forewarn import times
from forewarn.cli import fleet_file, output
from forewarn.cli.exits import ExitStatus, Failed
from forewarn.cli.operator import Answer, OperatorClient, asks, asks_for_pages, segment
from forewarn.cli.options import argument, flag, option

if TYPE_CHECKING:
    from forewarn.server.operator import schemas

app = typer.Typer(help="Apply a fleet file; list, show and remove machines.", no_args_is_help=True)


@app.command()
@asks
def apply(
    file: Annotated[str, argument("FILE", "The fleet, TOML or JSON; '-' for stdin.")],
    *,
    prune: Annotated[bool, flag("--prune", "Remove machines that are not in the file.")] = False,
    allow_empty: Annotated[
        bool, flag("--allow-empty", "Let --prune remove the last machine.")
    ] = False,
    again: Annotated[
        bool, flag("--again", "Add machines again that were preempted or terminated.")
    ] = False,
    dry_run: Annotated[bool, flag("--dry-run", "Only show what would change.")] = False,
    service: OperatorClient,
) -> None:
    """Apply a fleet file, all of it or nothing.

    Machines that are not in the file stay, unless --prune is given.
    """
    fleet = fleet_file.read(file)
    options = {"prune": prune, "allow_empty": allow_empty, "again": again, "dry_run": dry_run}
    try:
        answer = service.put("/v1/fleet", fleet.body, **options)
    except Failed as failed:
        raise fleet.blamed(failed) from failed
    show_change(answer)


@app.command("list")
@asks_for_pages
def list_(
    *,
    scopes: Annotated[bool, flag("--scopes", "List scopes, not machines.")] = False,
    lost: Annotated[
        bool, flag("--lost", "List machines that were preempted or terminated.")
    ] = False,
    scope: Annotated[str, option("--scope", "NAME", "Only machines of this scope.")] = "",
    host: Annotated[
        str,
        option(
            "--host", "NAME", "Only machines on this host; 'unknown' for machines without a host."
        ),
    ] = "",
    service: OperatorClient,
) -> None:
    """List machines, or scopes, or machines that are gone."""
    if (scopes or lost) and (scope or host):
        flag = "--scopes" if scopes else "--lost"
        raise typer.BadParameter(f"{flag} excludes --scope and --host")
    if scopes and lost:
        raise typer.BadParameter("--scopes excludes --lost")
    if scopes:
        service.pages("/v1/fleet/scopes", "scopes").show(_draw_scopes)
    elif lost:
        service.pages("/v1/fleet/tombstones", "tombstones").show(_draw_lost)
    else:
        answer = service.pages("/v1/fleet/machines", "machines", scope=scope, host=host)
        answer.show(_draw_machines)


@app.command()
@asks
def show(
    name: Annotated[str, argument("NAME", "The name of a machine or a scope.")],
    *,
    service: OperatorClient,
) -> None:
    """Show a machine or a scope.

    For a standalone machine, which is a scope too, it shows the machine.
    """
    for kind, draw in (("machines", _draw_machine), ("scopes", _draw_scope)):
        try:
            answer = service.get(f"/v1/fleet/{kind}/{segment(name)}")
        except Failed as failed:
            if failed.status is not ExitStatus.NOT_FOUND:
                raise
        else:
            answer.show(draw)
            return
    near = service.similar(name, "machine", "scope")
    see = f"did you mean {near!r}?" if near else "see 'forewarn fleet list'"
    raise Failed(ExitStatus.NOT_FOUND, f"no machine and no scope named {name!r}: {see}")


@app.command()
@asks
def export(*, service: OperatorClient) -> None:
    """Print the fleet as a fleet file, in TOML.

    To apply it changes nothing; with --json it is JSON.
    """
    from forewarn.maintenance.fleet import Fleet

    answer = service.get("/v1/fleet")
    if service.as_json:
        output.document(answer.tree())
    else:
        output.say(fleet_file.written(answer.read(Fleet)).rstrip("\n"))


@app.command()
@asks
def remove(
    names: Annotated[list[str], argument("NAME", "Names of machines.")],
    *,
    service: OperatorClient,
) -> None:
    """Remove machines from the fleet.

    If one is unknown, or has a live event, none is removed.
    """
    show_change(service.delete("/v1/fleet/machines", name=names))


def show_change(answer: Answer) -> None:
    """Print what applying a fleet changed, with warnings on stderr."""
    answer.show(_draw_change)
    for warning in answer.tree()["warnings"]:
        output.note(f"warning: {warning}")


def _draw_change(change: "schemas.FleetChange") -> None:
    would = "would be " if change.dry_run else ""
    done = (("added", change.added), ("changed", change.changed), ("removed", change.removed))
    for what, names in done:
        if names.count:
            output.say(f"{names.count} {would}{what}: {output.names(names)}")
    if change.unchanged:
        output.say(f"{change.unchanged} unchanged")
    kept, gone = change.missing, change.tombstones
    if kept.count:
        output.say(
            f"{kept.count} not in the file, kept (--prune removes them): {output.names(kept)}"
        )
    if gone.count:
        listed = output.names(gone)
        output.say(f"{gone.count} preempted or terminated, not added (--again adds them): {listed}")
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
            "DOMAIN": lambda machine: machine.update_domain,
            "HOST": lambda machine: machine.host,
            "ADDRESS": lambda machine: machine.address,
            **({"LISTENER": lambda machine: machine.listener} if named else {}),
            "LAST SEEN": lambda machine: machine.last_seen and machine.last_seen.at,
            "BY": lambda machine: machine.last_seen and machine.last_seen.version,
            "EVENTS": lambda machine: len(machine.events),
        },
        empty="There is no such machine: 'forewarn fleet apply FILE' adds some.",
    )


def _draw_scopes(page: "schemas.ScopePage") -> None:
    output.table(
        page.scopes,
        {
            "SCOPE": lambda scope: scope.name,
            "KIND": lambda scope: scope.kind,
            "MACHINES": lambda scope: scope.machines,
            "DOMAINS": lambda scope: scope.update_domains,
            "PRIORITY": lambda scope: scope.priority,
            "INCARNATION": lambda scope: scope.incarnation,
            "EVENTS": lambda scope: len(scope.events),
        },
        empty="There are no scopes: 'forewarn fleet apply FILE' adds them.",
    )


def _draw_lost(page: "schemas.TombstonePage") -> None:
    output.table(
        page.tombstones,
        {
            "MACHINE": lambda one: one.name,
            "LOST BY": lambda one: one.event_type or "Removed",
            "OPERATION": lambda one: one.operation,
            "AT": lambda one: one.at,
        },
        empty="No machine was preempted or terminated.",
    )


def _draw_machine(machine: "schemas.MachineDetail") -> None:
    seen = machine.last_seen
    output.pairs(
        [
            ("machine", machine.name),
            ("scope", f"{machine.scope} ({machine.kind})"),
            ("update domain", machine.update_domain),
            ("fault domain", machine.fault_domain),
            ("host", machine.host),
            ("address", machine.address),
            *([("listener", machine.listener)] if machine.listener else []),
            ("vm id", machine.vm_id),
            *([("role", machine.role)] if machine.role else []),
            ("tags", ", ".join(f"{k}={v}" for k, v in machine.tags.items())),
            *((name.replace("_", " "), value) for name, value in machine.profile.items() if value),
            ("last seen", f"{times.shown(seen.at)} by {seen.version}" if seen else "never"),
            ("live events", ", ".join(machine.events)),
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
            ("incarnation", scope.incarnation),
            ("machines", scope.machines),
            *((f"update domain {d.number}", output.names(d.machines, 20)) for d in scope.domains),
            ("live events", ", ".join(scope.events)),
        ]
    )
