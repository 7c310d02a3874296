"""Domains for the fleet: the data that machines are made of, tags, and states.

    list URI...   prints one JSON object: the domains of each host, with tags and interfaces
    tag           reads {"uris", "domain", "tag"}, writes the domain's tag and prints it
    states URI    answers each line "states [UUID...]" on standard input by one JSON line:
                  the states of all domains, and for these UUIDs if they are tagged

An error is a line {"error", "code"}. `list` and `tag` then end with exit status 1. `states` goes
on: it keeps its connection from one line to the next, says where it was lost, and connects again
for the line after. It ends with its standard input, so it never outlives its caller, which kills it
when a call of libvirt hangs.
"""

import json
import os
import queue
import sys
import threading
from collections.abc import Collection, Sequence
from typing import Any, Final

import libvirt

from forewarn.connectors.libvirt import facts, program
from forewarn.connectors.libvirt.hypervisor import (
    NO_DOMAIN,
    UNSUPPORTED,
    Connection,
    Domain,
    Suppressed,
    connected,
    prepare,
)

PREFIX: Final = "forewarn"
"""The prefix of the tag in a domain's metadata."""

BUSY: Final = frozenset({55, 68})
"""libvirt's codes for a domain that somebody else changes, such as while it migrates."""


class DomainError(Exception):
    """The message is for the operator, `code` for the caller of the program."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


def run(verb: str, arguments: Sequence[str]) -> int:
    """Run a verb; return the exit status."""
    prepare()
    if verb == "states":
        return _serve(*arguments)
    try:
        program.say(_write_tag(json.load(sys.stdin)) if verb == "tag" else _list(arguments))
    except (DomainError, libvirt.libvirtError) as error:
        program.say(_refusal(error))
        return 1
    return 0


def _refusal(error: Exception) -> dict[str, str]:
    if isinstance(error, DomainError):
        return {"error": str(error), "code": error.code}
    busy = isinstance(error, libvirt.libvirtError) and error.get_error_code() in BUSY
    return {"error": str(error), "code": "busy" if busy else ""}


# States.


def _serve(uri: str) -> int:
    """Read lines here, and answer on another thread: a call that hangs hides no end of lines."""
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_answer, args=(uri, lines), daemon=True).start()
    for line in sys.stdin:
        lines.put(line)
    return 0


def _answer(uri: str, lines: "queue.SimpleQueue[str]") -> None:
    connection: Connection = None
    try:
        while True:
            tags_of = frozenset(lines.get().split()[1:])
            try:
                connection = _kept(connection) or connected(uri)
                answer: dict[str, Any] = {"domains": _states(connection, tags_of)}
            except DomainError as error:
                connection, answer = None, _refusal(error)
            except libvirt.libvirtError as error:
                answer = _refusal(error)
            program.say(answer)
    finally:
        os._exit(program.CRASHED)


def _kept(connection: Connection) -> Connection:
    """Return the connection, if there is one; refuse one that was lost.

    The host may have rebooted since the last answer: that must not look as if its domains had been
    stopped.
    """
    if connection is not None and not connection.isAlive():
        raise DomainError("the connection was lost")
    return connection


def _states(connection: Connection, tags_of: Collection[str]) -> list[dict[str, Any]]:
    """Return the state of each domain: one question to the host, and one for each of `tags_of`."""
    flags = libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_NOWAIT
    found = []
    for domain, stats in connection.getAllDomainStats(libvirt.VIR_DOMAIN_STATS_STATE, flags):
        state = _state(stats["state.state"], stats["state.reason"], domain.ID())
        uuid = domain.UUIDString()
        tagged = uuid in tags_of and _read_tag(domain) is not None
        found.append({"uuid": uuid, "name": domain.name(), "tagged": tagged, **state})
    return found


def _state(number: int, reason: int, run: int) -> dict[str, Any]:
    state, handed_over = facts.state_of(number, reason, active=run >= 0)
    why = facts.off_reason(number, reason) if state is facts.DomainState.OFF else ""
    return {"state": "handover" if handed_over else state.value, "reason": why, "run": run}


# Lists.


def _list(uris: Sequence[str]) -> dict[str, Any]:
    connections = [_open(uri) for uri in uris]
    return {
        "hosts": [
            {"hostname": each.getHostname(), "domains": _described(each)} for each in connections
        ]
    }


def _open(uri: str) -> Connection:
    try:
        return connected(uri)
    except libvirt.libvirtError as error:
        raise DomainError(f"{uri} does not answer: {error}") from error


def _described(connection: Connection) -> list[dict[str, Any]]:
    filters = _trees(connection, "listAllNWFilters")
    trees = _trees(connection, "listAllNetworks")
    networks = {name: facts.reserved_of(tree) for name, tree in trees.items()}
    found = []
    for domain in connection.listAllDomains():
        with Suppressed(NO_DOMAIN):  # it went away meanwhile
            tree = facts.parse(domain.XMLDesc())
            number, reason = domain.state()
            one = {
                "uuid": domain.UUIDString(),
                "name": domain.name(),
                **_state(number, reason, domain.ID()),
                "tag": facts.tag_in(tree),
                "interfaces": facts.interfaces_of(tree, networks, filters),
            }
            found.append(one)
    return found


def _trees(connection: Connection, listing: str) -> dict[str, Any]:
    with Suppressed(*UNSUPPORTED):
        found = getattr(connection, listing)()
        return {each.name(): facts.parse(each.XMLDesc(0)) for each in found}
    return {}


# Tags.


def _read_tag(domain: Domain) -> dict[str, str] | None:
    with Suppressed(NO_DOMAIN, libvirt.VIR_ERR_NO_DOMAIN_METADATA):
        text = domain.metadata(libvirt.VIR_DOMAIN_METADATA_ELEMENT, facts.TAG_URI)
        return facts.tag_of(facts.parse(text))
    return None


def _write_tag(asked: dict[str, Any]) -> dict[str, Any]:
    """Write one domain's tag on every host that has the domain, where it runs and is defined."""
    hosts = {uri: _open(uri) for uri in asked["uris"]}
    name = asked["domain"]
    found = [
        (uri, domain)
        for uri, connection in hosts.items()
        for domain in connection.listAllDomains()
        if domain.name() == name or domain.UUIDString() == name.lower()
    ]
    uuids = sorted({domain.UUIDString() for _, domain in found})
    if not found:
        where = ", ".join(connection.getHostname() for connection in hosts.values())
        raise DomainError(f"no domain with the name or UUID {name!r} on {where}", "not-found")
    if len(uuids) > 1:
        message = f"several domains are named {name!r}: give one UUID of {', '.join(uuids)}"
        raise DomainError(message, "ambiguous")
    # Where it runs first: a definition elsewhere may be older.
    found.sort(key=lambda place: not place[1].isActive())
    tag = _read_tag(found[0][1]) or {}
    tag |= {field: value for field, value in asked["tag"].items() if value is not None}
    for _, domain in found:
        flags = libvirt.VIR_DOMAIN_AFFECT_LIVE if domain.isActive() else 0
        flags |= libvirt.VIR_DOMAIN_AFFECT_CONFIG if domain.isPersistent() else 0
        kind = libvirt.VIR_DOMAIN_METADATA_ELEMENT
        domain.setMetadata(kind, facts.tag_xml(tag), PREFIX, facts.TAG_URI, flags)
    return {
        "uuid": uuids[0],
        "name": found[0][1].name(),
        "hosts": [{"uri": uri, "hostname": hosts[uri].getHostname()} for uri, _ in found],
        "tag": {field: tag.get(field, "") for field in facts.TAG_FIELDS},
    }
