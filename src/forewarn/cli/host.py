"""`forewarn host`: drain hosts, and say how a drain goes on."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from forewarn import times
from forewarn.cli import follow, maintenance, output
from forewarn.cli.operator_client import OperatorClient, asks, segment
from forewarn.cli.options import argument, flag, option

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
"""What an operator can do about a drain, and about a machine of it, and the help of each.

The first sentence says it where a drain is stuck.
"""

app = typer.Typer(help="Drain, reboot and reopen hosts.", no_args_is_help=True)

HostArgument = Annotated[str, argument("HOST", "The host.")]
MachineArgument = Annotated[str, argument("MACHINE", "The machine.")]


@app.command("list")
@asks
def list_(*, service: OperatorClient) -> None:
    """List hosts and the state of their drains."""
    service.get("/v1/hosts").show(_draw_hosts)


@app.command()
@asks
def show(host: HostArgument, *, service: OperatorClient) -> None:
    """Show a host, its machines and its drain."""
    service.get(f"/v1/hosts/{segment(host)}").show(_draw_host)


@app.command()
@asks
def drain(
    hosts: Annotated[list[str], argument("HOST", "Hosts, drained one after another.")],
    *,
    reboot: Annotated[bool, flag("--reboot", "Reboot each host once it is empty.")] = False,
    bring_home: Annotated[
        Literal["yes", "no"],
        option("--return", "yes|no", "Whether machines come home after the reboot."),
    ] = "yes",
    stay: Annotated[
        Literal["refuse", "stop", "redeploy"],
        option(
            "--stay",
            "refuse|stop|redeploy",
            "Machines that cannot be moved while they run: refuse the drain, shut them down "
            "while the host reboots, or redeploy them.",
        ),
    ] = "refuse",
    without_notice: Annotated[
        bool, flag("--without-notice", "Also move machines that get no notice.")
    ] = False,
    dry_run: Annotated[bool, flag("--dry-run", "Only show the plan.")] = False,
    wait: follow.WaitOption = False,
    service: OperatorClient,
) -> None:
    """Move all machines away from hosts.

    Each move has the least notice of its type, and it cannot be longer. No machine moves to a
    host that is drained.
    """
    if wait and dry_run:
        raise typer.BadParameter("--wait has nothing to wait for with --dry-run")
    plan = service.post(
        "/v1/hosts/drain" + ("?dry_run=true" if dry_run else ""),
        hosts=hosts,
        reboot=reboot,
        bring_home=bring_home == "yes",
        stay=stay,
        without_notice=without_notice,
    )
    number = plan.tree()["maintenance"]
    if not wait:
        plan.show(_draw_plans)
    elif number is not None:
        maintenance.wait_for(service, number, lambda: plan.show(_draw_plans))
    else:
        _wait(service, hosts, lambda: plan.show(_draw_plans))


def _command(order: str) -> Callable[..., None]:
    def of_host(host: HostArgument, *, service: OperatorClient) -> None:
        _order(service, host, order)

    def of_machine(
        host: HostArgument, machine: MachineArgument, *, service: OperatorClient
    ) -> None:
        _order(service, host, order, machine)

    return asks(of_machine if order in MACHINE_ORDERS else of_host)


for _name, _text in (HOST_ORDERS | MACHINE_ORDERS).items():
    app.command(_name, help=_text)(_command(_name))


@app.command()
@asks
def watch(
    hosts: Annotated[list[str], argument("HOST", "The hosts.")], *, service: OperatorClient
) -> None:
    """Show what changes until the drains are over.

    Exit status: 0 when all are over, 11 when one is stuck.
    """
    _wait(service, hosts)


def _order(service: OperatorClient, host: str, order: str, machine: str = "") -> None:
    path = f"/v1/hosts/{segment(host)}/orders"
    service.post(path, order=order, machine=machine).show(_draw_state)


def _wait(
    service: OperatorClient, hosts: list[str], first: Callable[[], None] = lambda: None
) -> None:
    from forewarn.server.operator import schemas

    def look() -> follow.Progress:
        answers = [service.get(f"/v1/hosts/{segment(host)}") for host in hosts]
        details = [answer.read(schemas.HostDetail) for answer in answers]
        stuck = [
            f"host {one.host.name} is {_state(one.host)}: see 'forewarn host show {one.host.name}'"
            for one in details
            if one.host.stuck_in
        ]
        return follow.Progress(
            all(map(_rests, details)),
            "; ".join(stuck),
            lambda: {"hosts": [answer.tree() for answer in answers]},
            {what: now for one in details for what, now in _facts(one)},
        )

    follow.wait(service, look, types=NEWS, shown_by="forewarn host list", first=first)


def _rests(detail: "schemas.HostDetail") -> bool:
    reboots = detail.drain is None or detail.drain.reboot
    return detail.host.state == "up" or (detail.host.state == "empty" and not reboots)


def _facts(detail: "schemas.HostDetail") -> Iterator[tuple[str, str]]:
    host = detail.host
    yield host.name, f"{host.state}: {host.reason}" if host.reason else str(host.state)
    for machine in detail.drain.machines if detail.drain is not None else ():
        move = machine.returns_by or machine.leaves_by
        if move is not None:
            until = ""
            if move.status == "Scheduled" and move.not_before is not None:
                until = f", not before {times.shown(move.not_before)}"
            yield f"{host.name}  {machine.name}", f"{_way(machine)} {_move(move)}{until}"


def _way(machine: "schemas.DrainedMachine") -> str:
    if machine.returns_by is not None:
        return "returns:"
    return "stops:" if machine.way == "stop" else f"moves to {machine.to_host}:"


def _draw_hosts(found: "schemas.HostList") -> None:
    if found.trouble:
        output.note(f"warning: cannot read the hosts: {found.trouble}")
    # Where no host has a relay, the table says nothing of them.
    relays = _RELAY_COLUMNS if any(host.relay for host in found.hosts) else {}
    output.table(
        found.hosts,
        {
            "HOST": lambda host: host.name,
            "STATE": _state,
            "SINCE": lambda host: host.changed_at,
            "RUNNING": lambda host: host.running if host.answers else None,
            "FREE MIB": lambda host: host.free_memory_mib if host.answers else None,
            **relays,
            "REASON": lambda host: host.reason or host.why,
        },
        empty="The connector knows no hosts.",
    )


def _of_relay(field: str) -> "Callable[[schemas.HostView], object]":
    return lambda host: getattr(host.relay, field, None)


_RELAY_COLUMNS: "Final[dict[str, Callable[[schemas.HostView], object]]]" = {
    "RELAY": _of_relay("state"),
    "HEARD": _of_relay("heard_at"),
    "VERSION": _of_relay("version"),
    "SERVES": _of_relay("machines"),
    "TOKEN OF": _of_relay("token_created_at"),
}


def _state(host: "schemas.HostView") -> str:
    return f"{host.state} in {host.stuck_in}" if host.stuck_in else str(host.state)


def _draw_state(detail: "schemas.HostDetail") -> None:
    host = detail.host
    reason = f": {host.reason}" if host.reason else ""
    output.say(output.printable(f"host {host.name} is {_state(host)}{reason}"))


def _draw_host(detail: "schemas.HostDetail") -> None:
    host, its = detail.host, detail.drain
    output.pairs(
        [
            ("host", host.name),
            ("state", _state(host) + (f", since {times.shown(host.changed_at)}" if its else "")),
            *([("reason", host.reason)] if host.reason else []),
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
            "MIB": lambda guest: guest.memory_mib,
            "CANNOT MOVE": lambda guest: "; ".join(guest.obstacles),
        },
        empty="No machine runs on it.",
    )
    if its is not None and its.machines:
        output.say("")
        output.table(
            its.machines,
            {
                "DRAINED": lambda one: one.name,
                "WAY": lambda one: one.way,
                "TO": lambda one: one.to_host,
                "LEAVES BY": lambda one: _move(one.leaves_by),
                "RETURNS BY": lambda one: _move(one.returns_by),
                "IS ON": lambda one: one.host,
            },
        )
    if host.stuck_in:
        output.say("")
        for order, text in (HOST_ORDERS | MACHINE_ORDERS).items():
            machine = " MACHINE" if order in MACHINE_ORDERS else ""
            output.say(f"forewarn host {order} {host.name}{machine}: {text.splitlines()[0]}")


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
    what = "certificate" if relay.shows_certificate else "token"
    return [*facts, (f"its {what} is of", f"{times.shown(relay.token_created_at)}{unused}")]


def _move(move: "schemas.DrainMove | None") -> str:
    return f"{move.operation} {move.status or ''}".rstrip() if move else ""


def _draw_plans(found: "schemas.HostDrainPlans") -> None:
    for plan in found.plans:
        guests = len(plan.guests)
        output.say(f"host {plan.host}: {guests} machine{'' if guests == 1 else 's'} to move")
        output.table(
            plan.guests,
            {
                "MACHINE": lambda guest: guest.name,
                "MIB": lambda guest: guest.memory_mib,
                "WAY": lambda guest: guest.way,
                "TO": lambda guest: guest.to_host,
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
        output.say(f"host {state.name} is {_state(state)}")
