"""`forewarn host`: drain hosts, and say how a drain goes on."""

import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import click

from forewarn import times
from forewarn.cli import follow, maintenance, output
from forewarn.cli.command import RequestCommand, asking, group, orders
from forewarn.cli.operator_client import Answer, OperatorClient, segment
from forewarn.cli.options import WAIT, Choice, argument, flag, option

if TYPE_CHECKING:
    from forewarn.server.operator import schemas

NEWS: Final = ("host", "operation")
"""The kinds of news after which a drain may be further."""

HOST_ORDERS: Final = {
    "undrain": "Open the host; its machines stay where they are.\n\n"
    "What has not started is cancelled. A maintenance that drains it and others halts.",
    "return": "Open the host and bring its machines home.",
    "retry": "Retry the step at which the drain is stuck.",
}
MACHINE_ORDERS: Final = {
    "skip": "Go on without a machine that did not move.\n\n"
    "While that machine runs there, the host is not empty, and is not rebooted.",
    "stop": "Shut a machine down while the host reboots.",
}
"""The orders about a drain, and about a machine of it, and the help of each.

The first sentence says it where a drain is stuck.
"""

ORDERED: Final = "/v1/hosts/{host}/orders"
HOST: Final = argument("host HOST", "The host.")
MACHINE: Final = argument("machine MACHINE", "The machine.")


@asking(
    argument("hosts HOST...", "Hosts, drained one after another."),
    flag("--reboot", "Reboot each host once it is empty."),
    option(
        "--return yes|no bring_home",
        "Whether machines come home after the reboot.",
        Choice(("yes", "no")),
        default="yes",
    ),
    option(
        "--stay refuse|stop|redeploy",
        "Machines that cannot be moved while they run: refuse the drain, shut them down "
        "while the host reboots, or redeploy them.",
        Choice(("refuse", "stop", "redeploy")),
        default="refuse",
    ),
    flag("--without-notice", "Also move machines that get no notice."),
    flag("--dry-run", "Only show the plan."),
    WAIT,
)
def drain(
    service: OperatorClient,
    *,
    hosts: Sequence[str],
    bring_home: str,
    dry_run: bool,
    wait: bool,
    **given: object,
) -> None:
    """Move all machines away from hosts.

    Each move has the least notice of its type, and it cannot be longer. No machine moves to a
    host that is drained.
    """
    if wait and dry_run:
        raise click.UsageError("--wait has nothing to wait for with --dry-run")
    asked = {"hosts": hosts, "bring_home": bring_home == "yes", **given}
    if dry_run:
        plan = service.post("/v1/hosts/drain?dry_run=true", **asked)
    else:
        plan = service.post_once("/v1/hosts/drain", **asked)
    number = plan.tree()["maintenance"]
    if not wait:
        plan.show(_draw_plans)
    elif number is not None:
        maintenance.wait_for(
            service,
            number,
            lambda: plan.show(_draw_plans),
            lambda: _trees(_asked(service, hosts)),  # as of one host
        )
    else:
        _wait(service, hosts, lambda: plan.show(_draw_plans), is_drained=True)


@asking(argument("hosts HOST...", "The hosts."))
def watch(service: OperatorClient, hosts: Sequence[str]) -> None:
    """Show what changes until the drains are over.

    Exit status: 0 when all are over, 11 when one is stuck.
    """
    _asked(service, hosts)  # or it ends here, before it waits
    _wait(service, hosts)


def _wait(
    service: OperatorClient,
    hosts: Sequence[str],
    first: Callable[[], None] = lambda: None,
    *,
    is_drained: bool = False,
) -> None:
    """Wait until hosts rest; if they are drained for the user, opening them early is a fault."""
    from forewarn.server.operator import schemas

    def look() -> follow.Progress:
        answers = _asked(service, hosts)
        details = [answer.read(schemas.HostDetail) for answer in answers]
        return follow.Progress(
            all(map(_rests, details)),
            "; ".join(fault for one in details if (fault := _fault(one, is_drained=is_drained))),
            lambda: _trees(answers),
            {what: now for one in details for what, now in _facts(one)},
        )

    follow.wait(service, look, types=NEWS, shown_by="forewarn host list", first=first)


def _asked(service: OperatorClient, hosts: Sequence[str]) -> list[Answer]:
    return [service.get(f"/v1/hosts/{segment(host)}") for host in hosts]


def _trees(answers: Sequence[Answer]) -> dict[str, object]:
    return {"hosts": [answer.tree() for answer in answers]}


def _rests(detail: "schemas.HostDetail") -> bool:
    reboots = detail.drain is None or detail.drain.reboot
    return detail.host.status == "up" or (detail.host.status == "empty" and not reboots)


def _fault(detail: "schemas.HostDetail", *, is_drained: bool) -> str:
    host, its = detail.host, detail.drain
    if host.status == "stuck":
        return f"host {host.name} is {output.status(host)}: see 'forewarn host show {host.name}'"
    if is_drained and host.status == "up" and (its is None or its.booted_at is None):
        what = "rebooted" if its is not None and its.reboot else "empty"
        return f"host {host.name} was opened before it was {what}"
    machines = its.machines if its is not None else ()
    moves = [move for one in machines if (move := one.returns_by or one.leaves_by) is not None]
    left = [move for move in moves if move.status is not None and not move.status.over]
    if left and all(maintenance.ORDER.search(move.status_detail) for move in left):
        return f"host {host.name}: {left[0].operation} {left[0].status_detail}"
    return ""


def _facts(detail: "schemas.HostDetail") -> Iterator[tuple[str, str]]:
    host = detail.host
    yield host.name, output.status(host)
    for machine in detail.drain.machines if detail.drain is not None else ():
        move = machine.returns_by or machine.leaves_by
        if move is not None:
            told = ": ".join(filter(None, (_move(move), move.status_detail)))
            yield f"{host.name}  {machine.name}", f"{_way(machine)} {told}"


def _way(machine: "schemas.DrainedMachine") -> str:
    if machine.returns_by is not None:
        return "returns:"
    return "stops:" if machine.way == "stop" else f"moves to {machine.to_host}:"


def _draw_hosts(found: "schemas.HostList") -> None:
    if found.trouble:
        output.note(f"warning: cannot read the hosts: {found.trouble}")
    output.table(
        found.hosts,
        {
            "HOST": "name",
            "STATUS": "status",
            "RUNNING": lambda host: host.running if host.answers else None,
            "FREE MIB": lambda host: host.free_memory_mib if host.answers else None,
            "?RELAY": lambda host: host.relay and host.relay.state,
            "?HEARD": lambda host: host.relay and host.relay.heard_at,
            "?VERSION": lambda host: host.relay and host.relay.version,
            "?SERVES": lambda host: host.relay and host.relay.machines,
            "?TOKEN OF": lambda host: host.relay and host.relay.token_created_at,
            "DETAIL": lambda host: host.status_detail or host.why,
        },
        empty="The connector knows no hosts.",
    )


def _draw_state(detail: "schemas.HostDetail") -> None:
    output.say(output.printable(f"host {detail.host.name} is {output.status(detail.host)}"))


def _draw_host(detail: "schemas.HostDetail") -> None:
    host, its = detail.host, detail.drain
    output.pairs(
        [
            ("host", host.name),
            ("status", output.status(host)),
            ("answers", "yes" if host.answers else f"no: {host.why}"),
            ("a target for machines", "yes" if host.target and not host.closed else "no"),
            ("free memory", f"{host.free_memory_mib} MiB"),
            ("boot id", host.boot_id),
            *(_relay_facts(host.relay) if host.relay else []),
            *([("drained by", its.requested_by)] if its else []),
        ]
    )
    output.say("")
    output.table(
        detail.guests,
        {
            "ON THE HOST": lambda guest: guest.machine or f"{guest.name} (not in the fleet)",
            "RUNS": lambda guest: "yes" if guest.running else "no",
            "MIB": "memory_mib",
            "CANNOT MOVE": lambda guest: "; ".join(guest.obstacles),
        },
        empty="No machine runs on it.",
    )
    if its is not None and its.machines:
        output.say("")
        output.table(
            its.machines,
            {
                "DRAINED": "name",
                "WAY": "way",
                "TO": "to_host",
                "LEAVES BY": lambda one: _move(one.leaves_by),
                "RETURNS BY": lambda one: _move(one.returns_by),
                "IS ON": "host",
            },
        )
    if host.status == "stuck":
        output.say("")
        for order, text in (HOST_ORDERS | MACHINE_ORDERS).items():
            machine = " MACHINE" if order in MACHINE_ORDERS else ""
            command = f"forewarn host {order} {shlex.quote(host.name)}{machine}"
            output.say(f"{command}: {text.splitlines()[0]}")


def _relay_facts(relay: "schemas.RelayView") -> list[tuple[str, object]]:
    unused = "; a newer one is not used yet" if relay.token_unused else ""
    facts: list[tuple[str, object]] = [("relay", relay.state)]
    if relay.heard_at is not None:
        facts += [
            ("heard", f"{times.shown(relay.heard_at)} by {relay.replica}"),
            ("has everything", "yes" if relay.up_to_date else "no"),
            ("its version", relay.version),
            ("runs since", times.shown(relay.started_at)),
            ("serves", f"{relay.machines} machines"),
        ]
    return [*facts, ("its token is of", f"{times.shown(relay.token_created_at)}{unused}")]


def _move(move: "schemas.DrainMove | None") -> str:
    return f"{move.operation} {move.status or ''}".rstrip() if move else ""


def _draw_plans(found: "schemas.HostDrainPlans") -> None:
    for plan in found.plans:
        guests = len(plan.guests)
        output.say(f"host {plan.host}: {guests} machine{'' if guests == 1 else 's'} to move")
        output.table(
            plan.guests,
            {
                "MACHINE": "name",
                "MIB": "memory_mib",
                "WAY": "way",
                "TO": "to_host",
                "CANNOT MOVE": lambda guest: "; ".join(guest.obstacles),
            },
        )
        if plan.strangers:
            names = output.listed(plan.strangers)
            output.note(f"warning: not in the fleet: {names}; the host is not empty while they run")
        for problem in plan.problems if found.dry_run else ():
            output.note(f"refused without --dry-run: {problem}")
    if found.maintenance is not None:
        output.say(f"maintenance {found.maintenance}: the hosts are drained one after another")
        output.note(f"To follow it: 'forewarn maintenance watch {found.maintenance}'.")
        return
    for state in () if found.dry_run else found.states:
        output.say(f"host {state.name} is {output.status(state)}")


commands = group(
    "Drain, reboot and reopen hosts.",
    {
        "list": RequestCommand(
            "List hosts and the state of their drains.", "GET /v1/hosts", show=_draw_hosts
        ),
        "show": RequestCommand(
            "Show a host, its machines and its drain.",
            "GET /v1/hosts/{host}",
            HOST,
            show=_draw_host,
        ),
        "drain": drain,
        **orders(HOST_ORDERS, ORDERED, HOST, show=_draw_state),
        **orders(MACHINE_ORDERS, ORDERED, HOST, MACHINE, show=_draw_state),
        "watch": watch,
    },
)
