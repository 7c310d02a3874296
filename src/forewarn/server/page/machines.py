"""The pages of machines, of hosts and of holds: lists, and what is known of one machine."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Annotated, Any, Final

import msgspec
from starlette.responses import Response

from forewarn.maintenance import model
from forewarn.maintenance.model import HoldKind
from forewarn.protocol.versions import NEWEST_VERSION, VERSION_BY_NAME, VERSIONS
from forewarn.server.operator import api, routing, schemas, views
from forewarn.server.operator.inventory import Inventory
from forewarn.server.operator.routing import Backend
from forewarn.server.operator.table import PAGE
from forewarn.server.page.routes import PageRequest, Search
from forewarn.store.port import HistoryQuery
from forewarn.vocabulary import AccessRole, ErrorCode

SHOWN: Final = 50
"""Machines, or hosts, of one page of the list."""

MAX_PLACES: Final = 500
"""The most scopes, and hosts, that a form lists; of more it has a field for their names."""

LATEST: Final = 15
"""Operations of a machine's page; the history has all of them."""

VersionName = Annotated[str, msgspec.Meta(max_length=20)]


@PAGE.route("GET", "/machines", AccessRole.VIEWER)
async def list_machines(
    page: PageRequest,
    *,
    q: Search = "",
    scope: str = "",
    host: routing.Name = "",
    cursor: str = "",
) -> Response:
    """List machines: those with a part of their name, scope, host or address; or all."""
    inventory, now = page.backend.inventory.snapshot(), page.backend.now()
    after = routing.key_before("machines", cursor)
    is_host = bool(host) and await api.has_host(page.backend, host)
    found = await page.backend.search.find(
        inventory, q.strip(), after, SHOWN + 1, scope=scope, host=host
    )

    def make() -> Mapping[str, Any]:
        shown, following = routing.page("machines", found, SHOWN, lambda machine: machine.key)
        keys = {machine.key for machine in shown}
        known = inventory.scopes.get(model.key(scope)) if scope else None
        return {
            "q": q.strip(),
            "scope": scope,
            "host": host,
            "is_host": is_host,
            "cursor": cursor,
            "total": len(inventory.machines),
            "machines": views.machines(shown, inventory),
            "live": live_by_machine(inventory, keys, now),
            "next": following,
            "the_scope": views.scope_detail(known, inventory) if known else None,
            "holds": _holds(inventory, {HoldKind.SCOPE: model.key(scope), HoldKind.HOST: host}),
        }

    return await page.show("machines.html", make)


def _holds(inventory: Inventory, places: Mapping[HoldKind, str]) -> list[schemas.HoldView]:
    """Return the holds of these places, by kind."""
    holds = inventory.holds.values()
    return [*views.holds([h for h in holds if places.get(h.kind) == h.name], inventory)]


def places(inventory: Inventory) -> dict[str, list[str]]:
    """Return the names of all hosts, and of all scopes but single machines; none of too many."""
    apart = {m.scope for m in inventory.machines.values() if m.scope != m.key}
    found = {
        "hosts": {m.host for m in inventory.machines.values() if m.host},
        "scopes": {inventory.name_of_scope(key) for key in apart},
    }
    return {
        kind: sorted(names) if len(names) <= MAX_PLACES else [] for kind, names in found.items()
    }


@PAGE.route("GET", "/holds", AccessRole.VIEWER)
async def list_holds(page: PageRequest) -> Response:
    """List the holds, with what each keeps from starting."""
    inventory = page.backend.inventory.snapshot()
    found = await page.once("holds", lambda: api.list_holds(page.backend))
    values = {"holds": found.holds}
    return await page.show("holds.html", lambda: {**values, "places": places(inventory)})


@PAGE.route("GET", "/hosts", AccessRole.VIEWER)
async def list_hosts(page: PageRequest, q: Search = "", cursor: str = "") -> Response:
    """List the hosts that the connector knows, and how far their drains are; or some by name."""
    after, part = routing.key_before("hosts", cursor), q.strip()
    found = await page.once("hosts", lambda: api.list_hosts(page.backend))

    def make() -> Mapping[str, Any]:
        fitting = (h for h in found.hosts if h.name > after and part.lower() in h.name.lower())
        shown, following = routing.page("hosts", fitting, SHOWN, lambda host: host.name)
        total = len(found.hosts)
        return {
            "hosts": shown,
            "trouble": found.trouble,
            "total": total,
            "is_long": total > SHOWN,
            "q": part,
            "cursor": cursor,
            "next": following,
        }

    return await page.show("hosts.html", make)


def live_by_machine(
    inventory: Inventory, keys: Iterable[str], now: datetime
) -> dict[str, tuple[Any, ...]]:
    """Return the operations that are live, of each of these machines, by key."""
    found: dict[str, list[model.Operation]] = {key: [] for key in keys}
    for operation in inventory.operations.values():
        for name in operation.machines:
            key = model.key(name)
            if key in found:
                found[key].append(operation)
    return {key: views.operations(those, inventory, now) for key, those in found.items()}


@PAGE.route("GET", "/machines/{name}", AccessRole.VIEWER)
async def show_machine(page: PageRequest, name: str) -> Response:
    """Show a machine: facts, maintenance, its agent's word, and the document that it reads."""
    backend = page.backend
    inventory, now = backend.inventory.snapshot(), backend.now()
    machine = inventory.machine(name)
    key = machine.key
    bodies = {each.name: backend.guests.document(machine.scope, each) for each in VERSIONS}

    wanted = HistoryQuery(machine=key, limit=LATEST)
    past = (await backend.read(lambda reading: reading.history(wanted))).operations
    places = {HoldKind.SCOPE: machine.scope, HoldKind.HOST: machine.host, HoldKind.MACHINE: key}

    def make() -> Mapping[str, Any]:
        live = live_by_machine(inventory, [key], now)[key]
        ids = {operation.id for operation in live}
        return {
            "machine": views.machine_detail(machine, inventory),
            "live": live,
            "past": views.operations([o for o in past if o.id not in ids], inventory, now),
            "holds": _holds(inventory, places),
            "documents": [(each, *_document(body)) for each, body in bodies.items()][::-1],
        }

    return await page.show("machine.html", make)


@PAGE.route("GET", "/machines/{name}/document", AccessRole.VIEWER)
async def send_document(
    backend: Backend, name: str, version: VersionName = NEWEST_VERSION.name
) -> Response:
    """Send a machine's document as a version shows it, byte for byte."""
    machine = backend.inventory.machine(name)
    known = VERSION_BY_NAME.get(version)
    if known is None:
        names = ", ".join(VERSION_BY_NAME)
        message = f"no version {version!r} of the protocol: expected one of {names}"
        raise model.Refused(ErrorCode.NOT_FOUND, message)
    headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    body = backend.guests.document(machine.scope, known)
    return Response(body, headers=headers, media_type="application/json")


def _document(body: bytes) -> tuple[str, int]:
    """Return its JSON with a line for each value, and the number of its events."""
    pretty = msgspec.json.format(body, indent=2).decode()
    return pretty, len(msgspec.json.decode(body)["Events"])
