"""`forewarn fleet`: the machines and their scopes, from a fleet file or from libvirt's domains.

The service checks a fleet file (`maintenance.fleet_file`), so that only one release decides. Its
errors have the place in the file, and get the names of file and entry here.

Domains are read by the program of `connectors.libvirt`, so that the command never
loads the C library, and ends in time when a host hangs.
"""

import hashlib
import json
import re
import sys
import urllib.parse
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from forewarn import times
from forewarn.cli import output
from forewarn.cli.command import asking, command, group
from forewarn.cli.exits import ExitStatus, Failed, read_text, system_can
from forewarn.cli.operator_client import Answer, OperatorClient, segment, settings_in_use
from forewarn.cli.options import TEXT, argument, flag, option
from forewarn.server.operator import fields

if TYPE_CHECKING:
    from forewarn.maintenance.fleet_file import Fleet
    from forewarn.server.operator import schemas
    from forewarn.server.settings import Settings

CHANGES: Final = flag("--dry-run", "Only show what would change.")


@asking(
    argument("file FILE", "The fleet, TOML or JSON; '-' for stdin.", TEXT),
    flag("--prune", "Remove machines that are not in the file."),
    flag("--allow-empty", "Let --prune remove the last machine."),
    flag("--re-add", "Add machines again that were preempted or terminated."),
    CHANGES,
)
def apply(service: OperatorClient, file: str, **options: bool) -> None:
    """Apply a fleet file, all of it or nothing.

    Machines that are not in the file stay, unless --prune is given.
    """
    fleet = read_file(file)
    try:
        answer = service.put("/v1/fleet", fleet.body, **options)
    except Failed as failed:
        raise fleet.blamed(failed) from failed
    _show_change(answer)


@asking(
    flag("--scopes", "List scopes, not machines."),
    flag("--deleted", "List machines that were preempted or terminated."),
    option("--scope NAME", "Only machines of this scope."),
    option("--host NAME", "Only machines on this host; 'unknown' for machines without a host."),
    paged=True,
)
def list_(
    service: OperatorClient, *, scopes: bool, deleted: bool, scope: str | None, host: str | None
) -> None:
    """List machines, or scopes, or machines that are gone."""
    if scopes + deleted + bool(scope or host) > 1:
        raise click.UsageError("use only one of: --scopes; --deleted; --scope and --host")
    if scopes:
        service.pages("/v1/fleet/scopes", "scopes").show(SCOPES)
    elif deleted:
        service.pages("/v1/fleet/tombstones", "tombstones").show(LOST)
    else:
        found = service.pages("/v1/fleet/machines", "machines", scope=scope, host=host)
        found.show(FEWER_MACHINES if scope or host else MACHINES)


@asking(argument("name NAME", "The name of a machine or a scope."))
def show(service: OperatorClient, name: str) -> None:
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


@asking()
def export(service: OperatorClient) -> None:
    """Print the fleet as a fleet file, in TOML.

    Applying it changes nothing. With --json it is JSON.
    """
    from forewarn.maintenance.fleet_file import Fleet

    answer = service.get("/v1/fleet")
    if service.as_json:
        output.document(answer.tree())
    else:
        output.say(as_toml(answer.read(Fleet)).rstrip("\n"))


@asking(argument("names NAME...", "Names of machines."))
def remove(service: OperatorClient, names: Sequence[str]) -> None:
    """Remove machines from the fleet.

    If one is unknown, or has a live event, none is removed.
    """
    _show_change(service.delete("/v1/fleet/machines", name=names))


def _show_change(answer: Answer) -> None:
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
            f"{kept.count} not in the file, kept ('fleet apply --prune' removes them): "
            f"{output.names(kept)}"
        )
    if gone.count:
        listed = output.names(gone)
        output.say(
            f"{gone.count} preempted or terminated, not added (--re-add adds them): {listed}"
        )
    if not any(names.count for _, names in done):
        output.say("nothing would change" if change.dry_run else "nothing changed")


MACHINES: Final = output.AnswerTable(
    "schemas.MachinePage.machines",
    {
        "MACHINE": "name",
        "SCOPE": "scope",
        "KIND": "kind",
        "DOMAIN": "update_domain",
        "HOST": "host",
        "ADDRESS": "address",
        "?LISTENER": "listener",
        "LAST SEEN": lambda machine: machine.last_seen and machine.last_seen.at,
        "BY": lambda machine: machine.last_seen and machine.last_seen.version,
        "EVENTS": lambda machine: len(machine.events),
    },
    empty="There are no machines: 'forewarn fleet apply FILE' adds some.",
)
FEWER_MACHINES: Final = replace(MACHINES, empty="No matching machines.")
SCOPES: Final = output.AnswerTable(
    "schemas.ScopePage.scopes",
    {
        "SCOPE": "name",
        "KIND": "kind",
        "MACHINES": "machines",
        "DOMAINS": "update_domains",
        "PRIORITY": "priority",
        "INCARNATION": "incarnation",
        "EVENTS": lambda scope: len(scope.events),
    },
    empty="There are no scopes: 'forewarn fleet apply FILE' adds them.",
)
LOST: Final = output.AnswerTable(
    "schemas.TombstonePage.tombstones",
    {
        "MACHINE": "name",
        "LOST BY": lambda one: one.event_type or "Removed",
        "OPERATION": "operation",
        "AT": "at",
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
            ("?listener", machine.listener),
            ("vm id", machine.vm_id),
            ("?role", machine.role),
            ("tags", ", ".join(f"{k}={v}" for k, v in machine.tags.items())),
            *((f"?{name.replace('_', ' ')}", value) for name, value in machine.profile.items()),
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


# From libvirt.

STATUSES: Final = {
    "not-found": ExitStatus.NOT_FOUND,
    "ambiguous": ExitStatus.REFUSED,
    "busy": ExitStatus.REFUSED,
}
"""The exit status of each refusal of the program; any other is a host that does not answer."""

SYNCS: Final = 5
"""The most tries of a sync while others change the fleet."""

_NAMED_URI = re.compile(r"([^=:/?]+)=(.+)", re.DOTALL)

HYPERVISORS: Final = (
    option(
        "--libvirt URI...",
        "A host's libvirt URI, or NAME=URI if the fleet calls the host NAME. "
        "Default: the hosts of the service's settings.",
    ),
    option(
        "--python FILE",
        "The Python with the module libvirt, such as /usr/bin/python3. Default: that of the "
        "settings.",
        TEXT,
    ),
    option(
        "--limit-seconds S",
        "How long to wait for the hosts, at most 3600.",
        fields.within(1.0, 3600),
        default="60",
    ),
)


def _name(text: str) -> str:
    from forewarn.maintenance.fleet_file import EXPECTED_NAME, NAME

    if text and not NAME.fullmatch(text):
        message = f"invalid name {text[:80]!r}: {EXPECTED_NAME}"
        raise ValueError(message)
    return text


def _address(text: str) -> str:
    import ipaddress

    return text and str(ipaddress.ip_address(text))


@asking(CHANGES, *HYPERVISORS)
def sync(
    service: OperatorClient,
    *,
    dry_run: bool,
    **hypervisors: Any,  # noqa: ANN401 - the options of HYPERVISORS
) -> None:
    """Add libvirt's domains to the fleet, or change what they define.

    It changes nothing that domains do not define, and never removes machines.
    """
    import msgspec

    from forewarn.maintenance import fleet_file, fleet_import

    for left in reversed(range(SYNCS)):
        # Before the hosts are looked at: what changes from now on, others know better.
        known = service.get("/v1/fleet")
        found = _hosts(settings_in_use(), **hypervisors)
        hosts = msgspec.convert(found, type=dict[str, tuple[fleet_import.Domain, ...]])
        imported = fleet_import.fleet_of(hosts, known.read(fleet_file.Fleet))
        body, based_on = msgspec.json.encode(imported.fleet), hashlib.sha256(known.body).hexdigest()
        try:
            answer = service.put("/v1/fleet", body, based_on=based_on, dry_run=dry_run)
        except Failed as failed:
            if left and "based_on" in failed.facts:
                continue
            raise
        for warning in imported.warnings:
            output.note(f"warning: {output.printable(warning)}")
        _show_change(answer)
        return


@command(
    argument("domain DOMAIN", "A domain's name or UUID."),
    option("--scope NAME", "Its machine's scope.", _name),
    option(
        "--domain N update_domain", "The machine's update domain, at most 19.", fields.within(0, 19)
    ),
    option("--name NAME", "Its machine's name.", _name),
    option("--address IP", "The address, if libvirt's filters and networks have none.", _address),
    *HYPERVISORS,
)
def tag(
    domain: str,
    *,
    libvirt: Sequence[str],
    python: str | None,
    limit_seconds: float,
    **tagged: object,
) -> None:
    """Write a machine's scope, domain, name or address into libvirt.

    What is not given stays as it is; "" removes it. The domain may run meanwhile.
    """
    given = {
        name.replace("_", "-"): None if value is None else str(value)
        for name, value in tagged.items()
    }
    if set(given.values()) == {None}:
        raise click.UsageError("expected --scope, --domain, --name or --address")
    loaded = settings_in_use()
    named = _named(loaded, libvirt)
    asked = {"uris": [uri for _, uri in named], "domain": domain, "tag": given}
    told = _run(loaded, ["tag"], python, limit_seconds, json.dumps(asked))
    written = ", ".join(f"{field}={value}" for field, value in told["tag"].items() if value)
    names = {uri: host for host, uri in named}
    where = ", ".join(names[host["uri"]] or host["hostname"] for host in told["hosts"])
    output.say(output.printable(f"{told['name']} on {where}: {written or 'an empty tag'}"))


def _hosts(
    loaded: "Settings", libvirt: Sequence[str], python: str | None, limit_seconds: float
) -> dict[str, Any]:
    """Return the domains of each host, by the host's name in the fleet."""
    named = _named(loaded, libvirt)
    told = _run(loaded, ["list", *(uri for _, uri in named)], python, limit_seconds)
    hosts: dict[str, Any] = {}
    for (known_name, uri), host in zip(named, told["hosts"], strict=True):
        name = known_name or host["hostname"]
        if name in hosts:
            message = f"two hosts are called {name!r}: name them, as --libvirt h1={uri}"
            raise Failed(ExitStatus.USAGE, message)
        hosts[name] = host["domains"]
    return hosts


def _named(loaded: "Settings", given: Sequence[str]) -> list[tuple[str, str]]:
    """Return each host's name in the fleet, or `""` where that is unknown, and its URI."""
    if not given and not loaded.hypervisors:
        message = "no hosts: give --libvirt URI, or set fleet.libvirt.uris"
        raise Failed(ExitStatus.USAGE, message)
    named = [_split(each) for each in given] or [*loaded.hypervisors.items()]
    known = {uri: name for name, uri in loaded.hypervisors.items()}
    return [(name or known.get(uri, ""), uri) for name, uri in named]


def _split(text: str) -> tuple[str, str]:
    """Return the name, or `""`, and the URI of a --libvirt."""
    named = _NAMED_URI.fullmatch(text)
    name, uri = (named[1], named[2]) if named else ("", text)
    if not urllib.parse.urlsplit(uri).scheme:
        message = f"invalid URI {uri!r}: expected one such as qemu+ssh://h1/system"
        raise click.UsageError(message)
    return name, uri


def _run(
    loaded: "Settings", arguments: list[str], python: str | None, seconds: float, given: str = ""
) -> dict[str, Any]:
    """Run the program that reads the domains, and return its answer."""
    import subprocess

    from forewarn.connectors.libvirt.connector import PROGRAM
    from forewarn.connectors.libvirt.program import NO_LIBVIRT

    argv = [python or loaded.libvirt_python or sys.executable, "-I", PROGRAM]
    try:
        with system_can(f"run {argv[0]}"):
            done = subprocess.run(  # noqa: S603 - our own program, by the operator's Python
                [*argv, *arguments],
                input=given,
                capture_output=True,
                text=True,
                errors="replace",  # libvirt may speak in another encoding than ours
                timeout=seconds,
                check=False,
            )
    except subprocess.TimeoutExpired as error:
        message = f"the hosts did not answer within {seconds:g} s: is one of them down?"
        raise Failed(ExitStatus.UNREACHABLE, message) from error
    if done.returncode == NO_LIBVIRT:
        message = f"{argv[0]} has no module libvirt: install it there, or name another Python by "
        message += "--python, such as /usr/bin/python3 with python3-libvirt"
        raise Failed(ExitStatus.MISSING_EXTRA, output.printable(message))
    try:
        told: dict[str, Any] = json.loads(done.stdout)
    except ValueError as error:
        last = done.stderr.strip().rpartition("\n")[2]
        message = f"the program that reads libvirt's domains failed: {last}"
        raise Failed(ExitStatus.INTERNAL, output.printable(message)) from error
    if "error" in told:
        status = STATUSES.get(told.get("code", ""), ExitStatus.UNREACHABLE)
        raise Failed(status, output.printable(str(told["error"])))
    return told


# Fleet files.

MAX_FILE: Final = 256 * 1024 * 1024
"""The most bytes of a fleet file: more than the largest fleet needs."""

MAX_NAME: Final = 80
"""The most characters of a name that a message repeats; no valid name is longer."""

THE_BODY: Final = "the body"
"""The first words of the service's errors that concern the whole file."""

_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


@dataclass(frozen=True)
class FleetFile:
    """A fleet file: its name in messages, and the fleet as JSON and as values."""

    shown: str
    body: bytes
    tree: object
    toml: bool

    def blamed(self, failed: Failed) -> Failed:
        """Return the error of the service with the names of file and entry."""
        where, message = failed.facts.get("where"), failed.message
        if message.startswith(THE_BODY):
            message = self.shown + message.removeprefix(THE_BODY)
        elif where and message.startswith(f"at {where}") and self._begins(str(where)):
            place, _, what = message.removeprefix("at ").partition(": ")
            message = f"{self.shown}: {place}{self._of(place)}: {what}"
        if self.toml and where:
            message = message.replace("`object`", "`table`")
        return Failed(failed.status, message, failed.facts)

    def _begins(self, where: str) -> bool:
        first = _STEP.match(where)
        return first is not None and isinstance(self.tree, dict) and first[1] in self.tree

    def _of(self, place: str) -> str:
        """Return the innermost entry at a place that has a name."""
        value: Any = self.tree
        name, at_its_end = "", False
        for key, index in _STEP.findall(place):
            try:
                value = value[key or int(index)]
            except (LookupError, TypeError):
                break
            at_its_end = isinstance(value, dict) and isinstance(value.get("name"), str)
            name = value["name"] if at_its_end else name
        if not name or place.endswith(".name"):
            return ""
        return f" {name[:MAX_NAME]!r}" if at_its_end else f" of {name[:MAX_NAME]!r}"


def read_file(file: str) -> FleetFile:
    """Read a fleet file at a path, or stdin for `-`. The service checks its content."""
    import tomllib

    shown = "stdin" if file == "-" else file
    text = read_text(file, MAX_FILE)

    def refuse(value: object) -> NoReturn:
        message = f"{shown} has {value} without quotes: expected a string in quotes"
        raise Failed(ExitStatus.USAGE, message)

    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        # As in TOML: of two lists of machines, --prune would remove those of the first.
        if len(found := dict(pairs)) < len(pairs):
            ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
            raise Failed(ExitStatus.USAGE, f"{shown} has the key {twice[:MAX_NAME]!r} twice")
        return found

    try:
        if text.lstrip()[:1] == "{":
            tree = json.loads(text, object_pairs_hook=once)
            return FleetFile(shown, text.encode(), tree, toml=False)
        tree = tomllib.loads(text)
        body = json.dumps(tree, default=refuse, allow_nan=False).encode()
        return FleetFile(shown, body, tree, toml=True)
    except json.JSONDecodeError as error:
        raise Failed(ExitStatus.USAGE, f"{shown} is not valid JSON: {error}") from error
    except tomllib.TOMLDecodeError as error:
        what = "not valid TOML" if file.endswith(".toml") else "neither JSON nor TOML"
        raise Failed(ExitStatus.USAGE, f"{shown} is {what}: {error}") from error
    except RecursionError as error:
        message = f"{shown} has lists or tables that are nested too deeply"
        raise Failed(ExitStatus.USAGE, message) from error
    except ValueError as error:
        message = f"{shown} has nan or inf: expected a number"
        raise Failed(ExitStatus.USAGE, message) from error


def as_toml(fleet: "Fleet") -> str:
    """Return a fleet as TOML, with one machine a line and nothing that is the default."""
    lines = []
    for table in fleet.__struct_fields__:
        for entry in getattr(fleet, table):
            given = _given(entry)
            machines = given.pop("machines", ())
            lines += ["", f"[[{table}]]", *(f"{name} = {_toml(v)}" for name, v in given.items())]
            if machines:
                lines += ["machines = [", *(f"  {_toml(_given(one))}," for one in machines), "]"]
    return "\n".join(lines).lstrip("\n") + "\n"


def _given(entry: Any) -> dict[str, Any]:  # noqa: ANN401 - an entry of any table
    import msgspec

    found = {}
    for field in msgspec.structs.fields(entry):
        value = getattr(entry, field.name)
        factory = field.default_factory
        default = field.default if factory is msgspec.NODEFAULT else factory()
        if value != default:
            found[field.name] = value
    return {name: found[name] for name in sorted(found, key=lambda name: name != "name")}


def _toml(value: object) -> str:
    """Return a value as TOML has it; its strings are JSON's."""
    if hasattr(value, "__struct_fields__"):
        value = _given(value)
    if isinstance(value, dict):
        pairs = (f"{_key(name)} = {_toml(each)}" for name, each in value.items())
        return "{ " + ", ".join(pairs) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return str(value).lower() if isinstance(value, bool) else json.dumps(value, ensure_ascii=False)


def _key(name: str) -> str:
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)


commands = group(
    "Apply a fleet file; list, show and remove machines.",
    {
        "apply": apply,
        "list": list_,
        "show": show,
        "export": export,
        "remove": remove,
        "sync": sync,
        "tag": tag,
    },
)
