"""`forewarn doctor`: looks at what a guest, or the service's machine, needs to do its part.

Each check is a function of the loaded settings that yields findings, and a row of `AGENT` or
`SERVICE`. All of them start at once, each on a thread that may hang: nothing waits for it longer
than LIMIT_SECONDS. None of them writes anything, nor asks for events, which would turn them on.
"""

import os
import shutil
import socket
import threading
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import IntEnum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from forewarn.cli import agent, output
from forewarn.cli.command import command
from forewarn.cli.exits import ExitStatus, Failed
from forewarn.cli.operator_client import OperatorClient, own_address, settings_in_use
from forewarn.cli.options import JSON, flag
from forewarn.cli.unit import UNIT, unit_state

if TYPE_CHECKING:
    from forewarn.agent.settings import Loaded
    from forewarn.server.settings import Settings

LIMIT_SECONDS: Final = 15.0
"""The time limit of all checks, as they run side by side: three times what one question takes."""

ANSWER_SECONDS: Final = 5.0

FREE_BYTES: Final = 100 * 1024 * 1024
"""The least free space beside the database that is no reason to warn: weeks of a usual log."""

EVERYWHERE: Final = MappingProxyType({"0.0.0.0": "127.0.0.1", "::": "::1"})  # noqa: S104 - a key
"""The address to ask of a server that listens on all of them."""


class Level(IntEnum):
    """The result of a check, the worst last."""

    OK = 0
    WARN = 1
    FAIL = 2


STATUS: Final = (ExitStatus.OK, ExitStatus.ALERTS, ExitStatus.UNSOUND)
"""The exit status for the worst level."""


class Finding(NamedTuple):
    """A result, and what to do about it."""

    level: Level
    message: str


Findings = Iterator[Finding]


# On a guest.


def _endpoint(loaded: "Loaded") -> Findings:
    from forewarn.client import discovery, transport
    from forewarn.client.session import INSTANCE_VERSIONS
    from forewarn.clock import SystemClock

    own = loaded.settings.client
    path = f"/metadata/instance/compute/name?api-version={INSTANCE_VERSIONS[-1]}&format=text"
    silent = []
    for address in discovery.find(own.endpoint or None, os.environ, SystemClock().now()):
        headers = [("Metadata", "true")]
        try:
            reply = transport.request(
                "GET", f"{address}{path}", headers=headers, seconds=ANSWER_SECONDS
            )
        except transport.RequestFailed as failed:
            silent.append(f"{address} does not answer ({failed})")
            continue
        name = reply.body.decode("utf-8", "replace").strip()
        if reply.status != 200:
            why = f"{address} answers with status {reply.status}: is this machine in the fleet, "
            yield Finding(Level.FAIL, f"{why}with the address from which it asks?")
        elif own.machine and own.machine.lower() != name.lower():
            why = f"{address} calls this machine {name!r}, and client.machine is {own.machine!r}"
            yield Finding(Level.FAIL, f"{why}: correct the settings, or leave it out")
        else:
            yield Finding(Level.OK, f"{address} calls this machine {name!r}")
        return
    yield Finding(Level.FAIL, f"{'; '.join(silent)}: is the service up, and a route to it?")


def _status(loaded: "Loaded") -> Findings:
    from forewarn.agent.state import Phase
    from forewarn.settings import OFF

    listen = loaded.settings.status.listen
    if listen == OFF:
        yield Finding(Level.WARN, "status.listen is off: no peer and no balancer can ask the agent")
        return
    tree = agent.ask(listen)
    if tree.get("trouble"):
        yield Finding(Level.WARN, f"the agent is in trouble: {tree['trouble']}")
    else:
        yield Finding(Level.OK, f"the agent answers at {listen}")
    for event in tree["events"]:
        said = f"{event['event_type']} {event['event_status']}: {event['phase']}"
        held = event["phase"] == Phase.HELD
        remedy = event["stays_held"] or "repair what failed, then reload the agent"
        yield Finding(Level.WARN, f"{said}; {remedy}") if held else Finding(Level.OK, said)
    for effect in tree["standing"]:
        if effect["stuck"]:
            yield Finding(Level.WARN, f"stuck: {effect['effect']}: see 'forewarn agent status'")


def _peers(loaded: "Loaded") -> Findings:
    from forewarn.agent.settings import MACHINE_PLACE
    from forewarn.settings import OFF

    peers = loaded.settings.peers
    if isinstance(peers, str):
        listen = loaded.settings.status.listen
        told = {"events": []} if listen == OFF else agent.ask(listen)
        names = {name for event in told["events"] for name in event["resources"]}
        others = sorted(names - {told.get("machine")})
        peers = tuple(peers.replace(MACHINE_PLACE, name) for name in others)
        if not others:
            yield Finding(Level.OK, "they are asked when an event names other machines")
    advice = "is its agent up, and its status.listen an address that this machine reaches?"
    for parts in map(urllib.parse.urlsplit, peers):
        yield _reached(parts.hostname or "", parts.port or 80, advice)


def _programs(loaded: "Loaded") -> Findings:
    found = agent.warnings(loaded)
    yield from (Finding(Level.WARN, warning) for warning in found)
    if not found:
        yield Finding(Level.OK, "the programs and units of all rules are there")


def _unit(component: str) -> Findings:
    name = UNIT[component]
    state = unit_state(f"{name}.service")
    if not state:
        yield Finding(Level.OK, "systemd does not run here, or does not answer")
    elif state.get("LoadState") == "not-found":
        yield Finding(Level.WARN, f"there is no {name}.service: see 'forewarn unit {component}'")
    elif state.get("ActiveState") != "active":
        how = state.get("ActiveState", "unknown")
        yield Finding(Level.FAIL, f"{name}.service is {how}: see 'systemctl status {name}'")
    else:
        yield Finding(Level.OK, f"{name}.service is active")


AGENT: Final[Mapping[str, Callable[["Loaded"], Findings]]] = MappingProxyType(
    {
        "endpoint": _endpoint,
        "status port": _status,
        "peers": _peers,
        "programs": _programs,
        "unit": lambda _: _unit("agent"),
    }
)


# On the service's machine.


def _operators(settings: "Settings") -> Findings:
    from forewarn.settings import split_address

    service = OperatorClient(address=own_address(settings))
    service.get("/v1/clock")
    yield Finding(Level.OK, f"{service.address} answers")
    if settings.operator.listen:
        yield _reached(*split_address(settings.operator.listen))


def _alerts(settings: "Settings") -> Findings:
    count = OperatorClient(address=own_address(settings)).get("/v1/alerts").tree()["count"]
    if count:
        yield Finding(Level.WARN, f"{count} in all: see 'forewarn alerts'")
    else:
        yield Finding(Level.OK, "there are none")


def _guests(settings: "Settings") -> Findings:
    from forewarn.client.discovery import LINK_LOCAL

    for listener in settings.guest.listener:
        found = _reached(listener.address, listener.port)
        yield found
        if listener.address == LINK_LOCAL and found.level is Level.OK:
            hint = "a firewall between guests and it shows on a guest only: run this there, too"
            yield Finding(Level.OK, hint)


def _relays(settings: "Settings") -> Findings:
    from forewarn.settings import split_address

    if settings.relay.listen:
        yield _reached(*split_address(settings.relay.listen))


def _store(settings: "Settings") -> Findings:
    if settings.store.url:
        yield Finding(Level.OK, "PostgreSQL: the service itself watches it, see the alerts")
        return
    path = Path(settings.store.path)
    if not path.exists():
        yield Finding(Level.WARN, f"there is no {path} yet: 'forewarn serve' makes it")
    elif not os.access(path, os.R_OK | os.W_OK) or not os.access(path.parent, os.W_OK):
        why = f"this user cannot write {path} and its folder"
        yield Finding(Level.FAIL, f"{why}: run this as the service's user, or correct their owner")
    elif (free := shutil.disk_usage(path.parent).free) < FREE_BYTES:
        yield Finding(Level.WARN, f"{free // 2**20} MiB are free beside {path}: make room")
    else:
        yield Finding(Level.OK, f"{path} is writable")


def _connector(settings: "Settings") -> Findings:
    from forewarn.connectors.command import CommandUnusable
    from forewarn.server.service import check_programs

    kind = settings.connector.kind
    try:
        check_programs(settings, os.environ)
    except CommandUnusable as error:
        yield Finding(Level.FAIL, str(error))
        return
    if kind == "simulated":
        yield Finding(Level.WARN, "simulated: maintenance touches no machine; see connector.kind")
        return
    yield Finding(Level.OK, f"{kind}: its programs are there")
    if kind == "libvirt":
        hosts = OperatorClient(address=own_address(settings)).get("/v1/hosts").tree()["hosts"]
        for host in hosts:
            if not host["answers"]:
                yield Finding(Level.FAIL, f"host {host['name']} does not answer")


SERVICE: Final[Mapping[str, Callable[["Settings"], Findings]]] = MappingProxyType(
    {
        "operators": _operators,
        "guests": _guests,
        "relays": _relays,
        "store": _store,
        "connector": _connector,
        "alerts": _alerts,
        "unit": lambda _: _unit("service"),
    }
)


# How all of them are carried out.


def _reached(
    host: str, port: int, advice: str = "is the service up, and the address this machine's?"
) -> Finding:
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        socket.create_connection((EVERYWHERE.get(host, host), port), ANSWER_SECONDS).close()
    except OSError as error:
        why = f"{address} cannot be reached ({error.strerror or error}): {advice}"
        return Finding(Level.FAIL, why)
    return Finding(Level.OK, f"{address} answers")


def examine(
    checks: Mapping[str, Callable[[Any], Iterable[Finding]]],
    loaded: object,
    limit_seconds: float = LIMIT_SECONDS,
) -> Iterator[tuple[str, Finding]]:
    """Yield the findings of all checks, each with its check's name, in the table's order."""
    from forewarn.clock import SystemClock

    clock = SystemClock()
    until = clock.monotonic() + limit_seconds
    begun = []
    for name, check in checks.items():
        found: list[list[Finding]] = []
        thread = threading.Thread(target=_carry_out, args=(check, loaded, found), daemon=True)
        thread.start()
        begun.append((name, thread, found))
    for name, thread, found in begun:
        thread.join(max(0.0, until - clock.monotonic()))
        hung = Finding(Level.FAIL, f"it did not end within {limit_seconds:g} s")
        yield from ((name, each) for each in (found[0] if found else [hung]))


def _carry_out(
    check: Callable[[Any], Iterable[Finding]], loaded: object, found: list[list[Finding]]
) -> None:
    its: list[Finding] = []
    try:
        its.extend(check(loaded))
    except (Failed, ValueError) as error:
        its.append(Finding(Level.FAIL, str(error)))
    except Exception as error:  # noqa: BLE001 - one check must not end the others
        its.append(Finding(Level.FAIL, f"{type(error).__name__}: {error}"))
    found.append(its)


def _parts(*, service: bool, is_agent: bool) -> Iterator[tuple[str, str, Finding]]:
    tables: tuple[tuple[bool, str, Callable[[], Any], Mapping[str, Any]], ...] = (
        (is_agent, "agent", lambda: agent.load(None), AGENT),
        (service, "service", settings_in_use, SERVICE),
    )
    for is_wanted, part, load, checks in tables:
        if not is_wanted:
            continue
        try:
            loaded = load()
        except Failed as failed:
            yield part, "settings", Finding(Level.FAIL, failed.message)
            continue
        yield part, "settings", Finding(Level.OK, "they are valid")
        for name, finding in examine(checks, loaded):
            yield part, name, finding


@command(
    flag("--service", "Look at the service's machine."),
    flag("--agent is_agent", "Look at a guest, and its agent."),
    JSON,
)
def doctor(*, service: bool, is_agent: bool, as_json: bool) -> None:
    """Look at a guest or the service's machine; say what to do.

    By default it looks at both, if there are settings for both. It changes nothing. Exit status: 0
    if all is well, 11 with warnings, 12 if something fails.
    """
    from forewarn import settings
    from forewarn.agent import settings as of_agent
    from forewarn.server import settings as of_service

    if not service and not is_agent:
        names = (of_service.CONFIG_VARIABLE, of_service.CONFIG_NAME)
        service = settings.find(os.environ, *names) is not None
        names = (of_agent.CONFIG_VARIABLE, of_agent.CONFIG_NAME)
        is_agent = settings.find(os.environ, *names) is not None
    if not service and not is_agent:
        message = "neither a service nor an agent has settings here: use --service or --agent"
        raise Failed(ExitStatus.USAGE, message)
    told, worst = [], Level.OK
    for part, name, (level, message) in _parts(service=service, is_agent=is_agent):
        worst = max(worst, level)
        word = level.name.lower()
        told.append({"part": part, "check": name, "level": word, "message": message})
        if not as_json:
            output.say(output.printable(f"{word:<4}  {part:<7}  {name}: {message}"))
    if as_json:
        output.document({"findings": told})
    if worst is not Level.OK:
        raise click.exceptions.Exit(STATUS[worst])
