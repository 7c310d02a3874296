"""Reads the domains of libvirt hosts, and writes their tags: a program of its own.

Run as `python -I libvirt_domains.py`, by a Python that has the `libvirt` module and may have
nothing else: it imports only that and the standard library. Its caller never loads the C library,
and kills this program when a call of it hangs.

    list URI...          prints one JSON object: the domains of each host
    tag                  reads {"uris", "domain", "tag"}, writes the domain's tag and prints it
    watch URI            prints JSON lines for as long as the connection lasts

`watch` registers for events before it lists, so that nothing is lost between the two:

    {"domains": [...]}                             first: all there are
    {"event": "STOPPED", "detail": "FAILED", "domain": {...}}
                                                   a lifecycle event, and the state after it
    {"domain": {...}}                              the answer to a line "look UUID" on stdin
    {"alive": true}                                every ALIVE_SECONDS
    {"error": "..."}                               last: why it ends

It ends when its standard input does, so it never outlives its caller. What goes wrong is always a
last line with `error`, and exit status 1.
"""

import json
import os
import sys
import xml.etree.ElementTree as ET
from typing import Any, Final, TypeAlias

Untyped: TypeAlias = Any
"""A value of the `libvirt` module, which has no types."""

MACHINE: Final = "urn:forewarn:machine:1"
"""The namespace of the tag: `<machine scope= update-domain= name= address=/>`."""

PREFIX: Final = "forewarn"
"""The prefix of our elements in a domain's metadata."""

FIELDS: Final = ("scope", "update-domain", "name", "address")
"""The tag's attributes."""

NO_SUPPORT: Final = 3
NO_DOMAIN: Final = 42
NO_METADATA: Final = 80
"""The codes of libvirt's errors that are answers."""

BUSY: Final = frozenset({55, 68})
"""Those of a domain that is changed by somebody else, such as while it migrates."""

MAX_FILTERS: Final = 100
"""The most filters that one filter may lead to: a circle is none."""

ALIVE_SECONDS: Final = 5.0
KEEPALIVE: Final = (5, 3)
"""After 15 to 20 s without a sign of life the connection counts as lost: as libvirtd's own."""

ENFORCING: Final = frozenset({"no-ip-spoofing", "clean-traffic", "clean-traffic-gateway"})
"""libvirt's own filters that let a guest send from its parameter IP only."""

EVENTS: Final = (
    *("DEFINED", "UNDEFINED", "STARTED", "SUSPENDED", "RESUMED"),
    *("STOPPED", "SHUTDOWN", "PMSUSPENDED", "CRASHED"),
)
"""The names of VIR_DOMAIN_EVENT_*, by number."""

STOPPED: Final = (
    *("SHUTDOWN", "DESTROYED", "CRASHED", "MIGRATED", "SAVED", "FAILED", "FROM_SNAPSHOT"),
)
CRASHED: Final = ("PANICKED", "CRASHLOADED")
"""The details of the two kinds of events that may be failures."""

OFF_REASONS: Final = (
    *("unknown", "shutdown", "destroyed", "crashed", "migrated", "saved", "failed"),
    *("from-snapshot", "daemon"),
)
"""The names of VIR_DOMAIN_SHUTOFF_*, by number."""


def state_of(state: int, reason: int) -> tuple[str, str]:
    """Return a domain's state and why it is off, from the two numbers that libvirt gives.

    `handover` is a domain that is paused by its own migration, on either side.
    """
    if state == 3:
        return ("handover" if reason in {2, 11} else "paused"), ""
    if state == 5:
        return "off", OFF_REASONS[reason] if reason < len(OFF_REASONS) else "unknown"
    return ("crashed" if state == 6 else "running"), ""


def tag_of(domain: ET.Element) -> dict[str, str] | None:
    """Return the tag in a domain's XML; None if it has none."""
    found = domain.find(f"metadata/{{{MACHINE}}}machine")
    return None if found is None else {name: found.get(name, "") for name in FIELDS}


def interfaces_of(domain: ET.Element) -> list[dict[str, Any]]:
    """Return a domain's interfaces: MAC address, network, filter and the filter's parameter IP."""
    found: list[dict[str, Any]] = []
    for interface in domain.iterfind("devices/interface"):
        address, source = interface.find("mac"), interface.find("source")
        filtered = interface.find("filterref")
        given = [] if filtered is None else filtered.findall("parameter")
        found.append(
            {
                "mac": "" if address is None else address.get("address", "").lower(),
                "network": "" if source is None else source.get("network", ""),
                "filter": "" if filtered is None else filtered.get("filter", ""),
                # With several, the guest may use each of them: the first is its main one.
                "ip": next((p.get("value", "") for p in given if p.get("name") == "IP"), ""),
            }
        )
    return found


def reserved_of(network: ET.Element) -> dict[str, str]:
    """Return the addresses that a network reserves, by MAC address."""
    return {
        host.get("mac", "").lower(): host.get("ip", "")
        for host in network.iterfind("ip/dhcp/host")
        if host.get("mac") and host.get("ip")
    }


def spoof_proof(name: str, filters: dict[str, ET.Element]) -> bool:
    """Tell whether a filter, or one that it leads to, lets a guest send from its IP only."""
    seen: set[str] = set()
    waiting = [name]
    while waiting and len(seen) < MAX_FILTERS:
        name = waiting.pop()
        if name in ENFORCING:
            return True
        if name in seen or name not in filters:
            continue
        seen.add(name)
        waiting += [each.get("filter", "") for each in filters[name].iterfind("filterref")]
    return False


def tag_xml(tag: dict[str, str]) -> str:
    """Return the element that is written into a domain's metadata."""
    element = ET.Element("machine", {name: tag[name] for name in FIELDS if tag.get(name)})
    return ET.tostring(element, encoding="unicode")


class Unanswered(Exception):  # noqa: N818 - what a host did
    """A question has no answer; the message is for the operator, `code` for its caller."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class HostConnection:
    """One host's connection."""

    def __init__(self, library: Untyped, uri: str) -> None:
        self.library = library
        self.uri = uri
        try:
            self.connection = library.open(uri)
            self.name: str = self.connection.getHostname()
        except library.libvirtError as error:
            raise Unanswered(f"{uri} does not answer: {error}") from error

    def domains(self) -> list[dict[str, Any]]:
        """Return all that an import needs of each domain."""
        filters = self._described("listAllNWFilters")
        networks = {
            name: reserved_of(tree) for name, tree in self._described("listAllNetworks").items()
        }
        found = []
        for domain in self.connection.listAllDomains():
            try:
                tree = _parsed(domain.XMLDesc())
                state = self.brief(domain)
            except self.library.libvirtError as error:
                if error.get_error_code() == NO_DOMAIN:
                    continue  # it went away meanwhile
                raise
            interfaces = interfaces_of(tree)
            for each in interfaces:
                each["reserved"] = networks.get(each["network"], {}).get(each["mac"], "")
                name = each.pop("filter")
                each["enforced"] = bool(each["ip"]) and spoof_proof(name, filters)
            found.append({**state, "tag": tag_of(tree), "interfaces": interfaces})
        return found

    def brief(self, domain: Untyped, *, job: bool = False) -> dict[str, Any]:
        """Return what a watcher needs of a domain; `job` asks whether a migration is under way."""
        brief = {"uuid": domain.UUIDString(), "name": domain.name(), "tagged": False}
        try:
            brief["state"], brief["reason"] = state_of(*domain.state())
            brief["tagged"] = self.read_tag(domain) is not None
            brief["migrating"] = job and self._migrates(domain)
        except self.library.libvirtError as error:
            if error.get_error_code() != NO_DOMAIN:
                raise
            return brief | {"state": "gone", "reason": ""}
        return brief

    def look(self, uuid: str) -> dict[str, Any]:
        """Return a domain as it is now, by its UUID."""
        try:
            return self.brief(self.connection.lookupByUUIDString(uuid), job=True)
        except self.library.libvirtError as error:
            if error.get_error_code() != NO_DOMAIN:
                raise
            return {"uuid": uuid, "name": "", "state": "gone", "reason": ""}

    def read_tag(self, domain: Untyped) -> dict[str, str] | None:
        """Return a domain's tag; None if it has none."""
        try:
            text = domain.metadata(self.library.VIR_DOMAIN_METADATA_ELEMENT, MACHINE)
        except self.library.libvirtError as error:
            if error.get_error_code() == NO_METADATA:
                return None
            raise
        element = _parsed(text)
        return {name: element.get(name, "") for name in FIELDS}

    def write_tag(self, domain: Untyped, tag: dict[str, str]) -> None:
        """Write a domain's tag where it runs and where it is defined."""
        flags = self.library.VIR_DOMAIN_AFFECT_LIVE if domain.isActive() else 0
        flags |= self.library.VIR_DOMAIN_AFFECT_CONFIG if domain.isPersistent() else 0
        kind = self.library.VIR_DOMAIN_METADATA_ELEMENT
        domain.setMetadata(kind, tag_xml(tag), PREFIX, MACHINE, flags)

    def matching(self, name: str) -> list[Any]:
        """Return the domains with this name or UUID."""
        return [
            domain
            for domain in self.connection.listAllDomains()
            if name in {domain.name(), domain.UUIDString()}
        ]

    def _migrates(self, domain: Untyped) -> bool:
        try:
            job = domain.jobStats()
        except self.library.libvirtError:
            return False  # it is off, or this driver has no jobs
        # An operation is named since libvirt 3.3; any job counts where it is not.
        return job.get("type", 0) != 0 and job.get("operation", 5) in {4, 5}

    def _described(self, listing: str) -> dict[str, ET.Element]:
        """Return the XML of all that a listing has, by name; nothing where the driver has none."""
        try:
            found = getattr(self.connection, listing)()
            return {each.name(): _parsed(each.XMLDesc(0)) for each in found}
        except self.library.libvirtError as error:
            if error.get_error_code() == NO_SUPPORT:
                return {}
            raise


class HostWatch:
    """Tells what happens on one host, on one thread: calls are made between events, never in one.

    The connection to it is made after `virEventRegisterDefaultImpl`.
    """

    def __init__(self, host: HostConnection) -> None:
        self._host = host
        self._library = host.library
        self._events: list[tuple[Any, int, int]] = []
        self._heard = b""
        self._ended = ""

    def run(self) -> None:
        """Print what happens until the connection, or standard input, ends."""
        library, connection = self._library, self._host.connection
        kind = library.VIR_DOMAIN_EVENT_ID_LIFECYCLE
        connection.domainEventRegisterAny(None, kind, self._happened, None)
        connection.registerCloseCallback(self._closed, None)
        try:
            connection.setKeepAlive(*KEEPALIVE)
        except library.libvirtError as error:
            if error.get_error_code() != NO_SUPPORT:
                raise
        library.virEventAddHandle(0, library.VIR_EVENT_HANDLE_READABLE, self._hear, None)
        library.virEventAddTimeout(int(ALIVE_SECONDS * 1000), self._tell_alive, None)
        listed = [self._host.brief(domain) for domain in connection.listAllDomains()]
        say({"domains": listed})
        while not self._ended:
            library.virEventRunDefaultImpl()
            happened, self._events = self._events, []
            for domain, event, detail in happened:
                say(
                    {
                        "event": _named(EVENTS, event),
                        "detail": _detail(event, detail),
                        "domain": self._host.brief(domain),
                    }
                )
            self._answer()
        raise Unanswered(self._ended)

    def _happened(
        self, connection: object, domain: object, event: int, detail: int, _: object
    ) -> None:
        self._events.append((domain, event, detail))

    def _closed(self, connection: object, reason: int, _: object) -> None:
        why = _named(("error", "end of file", "keepalive timeout", "client"), reason)
        self._ended = f"the connection was closed: {why}"

    def _hear(self, watch: int, descriptor: int, events: int, _: object) -> None:
        data = os.read(descriptor, 65536)
        self._heard += data
        if not data:
            os._exit(0)  # whoever asked is gone

    def _tell_alive(self, timer: int, _: object) -> None:
        say({"alive": True})

    def _answer(self) -> None:
        *lines, self._heard = self._heard.split(b"\n")
        for line in lines:
            verb, _, uuid = line.decode("ascii", "replace").partition(" ")
            if verb == "look":
                say({"domain": self._host.look(uuid.strip())})


def _parsed(xml: str) -> ET.Element:
    return ET.fromstring(xml)  # noqa: S314 - libvirt wrote it


def _named(names: tuple[str, ...], number: int) -> str:
    return names[number] if 0 <= number < len(names) else str(number)


def _detail(event: int, detail: int) -> str:
    details = {"STOPPED": STOPPED, "CRASHED": CRASHED}.get(_named(EVENTS, event), ())
    return _named(details, detail)


def say(value: dict[str, Any]) -> None:
    """Print one JSON line; end where nobody reads any more."""
    data = json.dumps(value).encode() + b"\n"
    try:
        while data:
            data = data[os.write(1, data) :]
    except BrokenPipeError:
        os._exit(0)


def list_hosts(library: Untyped, uris: list[str]) -> None:
    """Print the domains of each host, in the order of the URIs."""
    hosts = [HostConnection(library, uri) for uri in uris]
    say({"hosts": [{"hostname": host.name, "domains": host.domains()} for host in hosts]})


def write_tag(library: Untyped) -> None:
    """Write one domain's tag on every host that has the domain, and print it."""
    asked = json.loads(sys.stdin.read())
    hosts = [HostConnection(library, uri) for uri in asked["uris"]]
    name = asked["domain"]
    found = [(host, domain) for host in hosts for domain in host.matching(name)]
    uuids = sorted({domain.UUIDString() for _, domain in found})
    if not found:
        where = ", ".join(host.name for host in hosts)
        raise Unanswered(f"no domain with the name or UUID {name!r} on {where}", "not-found")
    if len(uuids) > 1:
        message = f"several domains are named {name!r}: give one UUID of {', '.join(uuids)}"
        raise Unanswered(message, "ambiguous")
    # Where it runs first: a definition elsewhere may be older.
    found.sort(key=lambda pair: not pair[1].isActive())
    tag = found[0][0].read_tag(found[0][1]) or {}
    tag |= {field: value for field, value in asked["tag"].items() if value is not None}
    for host, domain in found:
        host.write_tag(domain, tag)
    say(
        {
            "uuid": uuids[0],
            "name": found[0][1].name(),
            "hosts": [{"uri": host.uri, "hostname": host.name} for host, _ in found],
            "tag": {field: tag.get(field, "") for field in FIELDS},
        }
    )


def main(arguments: list[str]) -> int:
    """Do what the arguments name, and return the exit status."""
    try:
        import libvirt  # noqa: PLC0415 - what is missing is said in JSON
    except ImportError as error:
        say({"error": f"{sys.executable} has no libvirt module: {error}", "code": "no-library"})
        return 1
    library: Untyped = libvirt
    library.registerErrorHandler(lambda *_: None, None)  # it would print each error
    try:
        if arguments[0] == "watch":
            library.virEventRegisterDefaultImpl()
            HostWatch(HostConnection(library, arguments[1])).run()
        elif arguments[0] == "tag":
            write_tag(library)
        else:
            list_hosts(library, arguments[1:])
    except Unanswered as error:
        say({"error": str(error), "code": error.code})
        return 1
    except library.libvirtError as error:
        busy = error.get_error_code() in BUSY
        say({"error": str(error), "code": "busy" if busy else ""})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
