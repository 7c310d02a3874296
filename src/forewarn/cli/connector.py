"""`forewarn connector`: the program that carries maintenance out, run by hand."""

import os
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from forewarn.cli import output
from forewarn.cli.command import asking, group
from forewarn.cli.exits import ExitStatus, Failed, server_is_installed, settings_are_usable
from forewarn.cli.operator_client import OperatorClient, segment
from forewarn.cli.options import CONFIG, DRY_RUN, Choice, argument, option
from forewarn.vocabulary import EventSource, EventType, TargetKind

if TYPE_CHECKING:
    from forewarn.connectors.port import Found, Outcome, Task
    from forewarn.server.settings import Settings

OPERATION: Final = "0.1"
"""The id of the operation in the program's order: no real operation has it."""

NAME: Final = "forewarn connector test"


@asking(
    argument("machine MACHINE", "The machine that the program is run for."),
    option("--type TYPE event_type", "The type of event. Default: reboot.", Choice(EventType)),
    option("--host NAME", "Its host. Default: the fleet's."),
    CONFIG,
    DRY_RUN,
)
def test(
    service: OperatorClient,
    *,
    machine: str,
    event_type: str | None,
    host: str | None,
    config: Path | None,
    dry_run: bool,
) -> None:
    """Run the connector's program once, outside of any maintenance.

    It really runs, by the service's own rules, on this machine and as this user; with --dry-run it
    does not. It says what the service would have concluded. Exit status: 0 completed, 11 failed or
    unknown.
    """
    import tempfile

    from forewarn.server import settings

    with settings_are_usable():
        loaded = settings.load(config, os.environ)
    if loaded.connector.kind != "command":
        message = f"connector.kind is {loaded.connector.kind}: only that of 'command' is run so"
        raise Failed(ExitStatus.USAGE, message)
    kind = next(
        each for each in EventType if each.lower() == (event_type or EventType.REBOOT).lower()
    )
    folder = Path(tempfile.mkdtemp(prefix="forewarn-connector-"))
    try:
        with server_is_installed(NAME):
            _test(service, loaded, _task(service, machine, host, kind), folder, dry_run=dry_run)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _test(
    service: OperatorClient, loaded: "Settings", task: "Task", folder: Path, *, dry_run: bool
) -> None:
    from msgspec import structs, to_builtins

    from forewarn.clock import SystemClock
    from forewarn.connectors.command import CommandConnector, CommandUnusable
    from forewarn.server.service import check_programs, connector_of

    program = structs.replace(loaded.connector.command, state=str(folder))
    kept_apart = structs.replace(
        loaded, connector=structs.replace(loaded.connector, command=program)
    )
    try:
        check_programs(loaded, os.environ)
        connector = connector_of(kept_apart, SystemClock(), os.environ, tuple)
    except CommandUnusable as error:
        raise Failed(ExitStatus.USAGE, str(error)) from error
    assert isinstance(connector, CommandConnector)
    planned = connector.planned(task)
    said = shlex.join(planned.argv)
    if dry_run:
        plan = {"program": planned.argv, "input": planned.order, "variables": planned.variables}
        if service.as_json:
            output.document(to_builtins(plan))
            return
        output.say(f"would run: {said}")
        output.say(f"ended after: {program.time_limit_seconds:g} s")
        for name, value in planned.variables.items():
            output.say(f"{name}={shlex.quote(value)}")
        return
    import asyncio
    import getpass

    who = getpass.getuser()
    output.note(f"This really runs {said} for {task.machines[0]} ({task.event_type}), as {who}.")
    output.note("Ctrl-C does not end it: like the service's, it is a session of its own.")
    found = asyncio.run(connector.perform(task))
    _conclude(service, found, loaded.connector.on_unknown)


def _conclude(service: OperatorClient, found: "Outcome | Found", on_unknown: str) -> None:
    from forewarn.connectors.port import Outcome

    told: dict[str, Any] = {"outcome": "unknown", "message": "", "hosts": {}}
    if isinstance(found, Outcome):
        told["outcome"] = "completed" if found.succeeded else "failed"
        told |= {"message": found.message, "hosts": found.hosts}
    else:
        told["message"] = f"the process that ran it was lost; on_unknown = {on_unknown} decides"
    if service.as_json:
        output.document(told)
    else:
        output.say(f"{told['outcome']}: {told['message']}".removesuffix(": "))
        for name, host in told["hosts"].items():
            output.say(f"{name} is on {host} now")
    if told["outcome"] != "completed":
        raise click.exceptions.Exit(ExitStatus.ALERTS)


def _task(service: OperatorClient, machine: str, host: str | None, kind: EventType) -> "Task":
    """Return the task, with what the fleet knows of the machine."""
    from forewarn.clock import SystemClock
    from forewarn.connectors.port import Task

    known = {"name": machine, "host": "", "vm_id": ""}
    try:
        known = service.get(f"/v1/fleet/machines/{segment(machine)}").tree()
    except Failed as failed:
        if failed.status is not ExitStatus.UNREACHABLE:
            raise
        output.note("note: the service does not answer, so vm_id is empty, and so is a host that")
        output.note("--host does not give.")
    return Task(
        operation=OPERATION,
        attempt=1,
        event_type=kind,
        source=EventSource.PLATFORM,
        description="",
        duration_seconds=-1,
        target=TargetKind.MACHINES,
        live_migration=False,
        machines=(known["name"],),
        hosts=(known["host"] if host is None else host,),
        vm_ids=(known["vm_id"],),
        started_at=SystemClock().now(),
    )


commands = group("Run the connector's program by hand.", {"test": test})
