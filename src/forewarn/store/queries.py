"""The questions to a database; each is a bounded number of statements."""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any, Final, TypeAlias

import msgspec

from forewarn.maintenance.accounts import AuditRecord, Token
from forewarn.maintenance.model import (
    HOLD_ORDER,
    Drain,
    Hold,
    Machine,
    Maintenance,
    Operation,
    Scope,
    Sighting,
    Tombstone,
)
from forewarn.maintenance.relays import Relay
from forewarn.maintenance.webhooks import Webhook
from forewarn.store import schema
from forewarn.store.connections import DatabaseConnection, Row
from forewarn.store.port import (
    AuditQuery,
    ChangeRecord,
    HistoryQuery,
    NewsRecord,
    Page,
    Position,
    Replica,
    micros,
    moment,
)
from forewarn.store.schema import decoded
from forewarn.vocabulary import AgentStatus, EventStatus

TRIMMED_NEWS: Final = "trimmed news"
LAST_MAINTENANCE: Final = "maintenance"
"""Numbers in `state`: of the last transaction whose news was trimmed, and of the last maintenance.
"""


Condition: TypeAlias = tuple[str, list[Any]]
"""A condition, and its values."""

_PAGE: Final = "SELECT o.announced, o.number, o.body FROM operations o"
_OPERATIONS: Final = "SELECT body FROM operations"
_AGENTS: Final = {"": None} | {one.value: one for one in AgentStatus}


class Reading:
    """A consistent view of one instant. Keys are lower-case names; unknown ones are left out."""

    def __init__(self, connection: DatabaseConnection) -> None:
        self._connection = connection
        self._last: Position | None = None
        """The last change of the outbox, once that was read."""

    def scopes(self) -> dict[str, Scope]:
        """Return all scopes by key."""
        return dict(sorted(self._state("scope").items()))

    def machines(self) -> dict[str, Machine]:
        """Return all machines by key."""
        share = schema.sharing()
        found: dict[str, Machine] = {}
        for name, body in self._bodies("machine"):
            one = decoded("machine", body)
            share(one)
            # A key is the name's own text where both are equal: 100,000 of them take 7 MB.
            found[one.name if one.name == name else name] = one
        return found

    def operations(self, ids: Collection[str]) -> dict[str, Operation]:
        """Return these operations, live or over, by id."""
        return _by_id(self._among(f"{_OPERATIONS} WHERE id {{among}} ORDER BY number", ids))

    def operations_of_maintenance(self, number: int) -> dict[str, Operation]:
        """Return a maintenance's operations, live or over, by id."""
        return _by_id(self._run(f"{_OPERATIONS} WHERE maintenance = ? ORDER BY number", number))

    def operations_of_events(self, event_ids: Collection[str]) -> dict[str, Operation]:
        """Return the operations, live or over, that these events (upper-case ids) belong to."""
        of_events = "id IN (SELECT operation FROM names WHERE name {among})"
        names = [f"event {one}" for one in event_ids]
        return _by_id(self._among(f"{_OPERATIONS} WHERE {of_events} ORDER BY number", names))

    def live_operations(self) -> dict[str, Operation]:
        """Return the live operations (`Operation.live`), by id."""
        return _by_id(self._run(f"{_OPERATIONS} WHERE live = 1 ORDER BY number"))

    def maintenances(self, numbers: Collection[int]) -> dict[int, Maintenance]:
        """Return these maintenances by number."""
        found = self._among("SELECT body FROM maintenances WHERE number {among}", numbers)
        return {one.number: one for one in values_of("maintenance", found)}

    def open_maintenances(self) -> dict[int, Maintenance]:
        """Return the maintenances with `Maintenance.open`, by number, the oldest first."""
        found = self._run("SELECT body FROM maintenances WHERE open = 1 ORDER BY number")
        return {one.number: one for one in values_of("maintenance", found)}

    def latest_maintenances(self, before: int | None, limit: int) -> list[Maintenance]:
        """Return up to `limit` maintenances with numbers below `before`, the newest first."""
        below = "SELECT body FROM maintenances WHERE number < ? ORDER BY number DESC LIMIT ?"
        found = self._run(below, 2**63 - 1 if before is None else before, limit)
        return values_of("maintenance", found)

    def maintenance_of_key(self, idempotency_key: str) -> Maintenance | None:
        """Return the latest maintenance that was requested with this idempotency key."""
        # The condition on no key is the index's own.
        asked = "key = ? AND key <> '' ORDER BY key, number DESC LIMIT 1"
        if "\0" in idempotency_key:  # no row has it, and PostgreSQL would not look for it
            return None
        found = self._run(f"SELECT body FROM maintenances WHERE {asked}", idempotency_key)
        return next(iter(values_of("maintenance", found)), None)

    def unacknowledged_failures(self, limit: int) -> dict[str, Operation]:
        """Return up to `limit` Failed operations that nobody acknowledged, the latest first."""
        latest = "WHERE failed = 1 ORDER BY ended DESC, number DESC LIMIT ?"
        return _by_id(self._run(f"{_OPERATIONS} {latest}", limit))

    def holds(self) -> tuple[Hold, ...]:
        """Return all holds, the oldest first, those of one instant by kind and name."""
        return tuple(sorted(self._state("hold").values(), key=HOLD_ORDER))

    def tombstones(self) -> dict[str, Tombstone]:
        """Return all tombstones, by the machine's key."""
        return self._state("tombstone")

    def retired(self) -> dict[str, int]:
        """Return the last incarnation of each removed scope that ever had an event, by key."""
        return self._state("retired")

    def drains(self) -> dict[str, Drain]:
        """Return the latest drain of each host, by the host as it is written."""
        return self._state("drain")

    def drain(self, host: str) -> Drain | None:
        """Return the latest drain of a host; None without one."""
        found: Drain | None = self._one("drain", host)
        return found

    def history(self, query: HistoryQuery) -> Page:
        """Return one page of operations, newest announcement first.

        Pages neither repeat nor skip an operation while new ones are announced.
        """
        if "\0" in query.machine + query.scope:
            return Page(operations=())
        found = self._connection.run(*_page(query))
        page = found[: query.limit]
        more = len(found) > query.limit
        return Page(
            operations=tuple(decoded("operation", body) for *_, body in page),
            next=(moment(page[-1][0]), page[-1][1]) if more else None,
        )

    def ended(self, since: datetime, limit: int) -> list[Operation]:
        """Return operations that ended since then and are not live, the latest end first."""
        latest = "WHERE live = 0 AND ended >= ? ORDER BY ended DESC, number DESC LIMIT ?"
        return values_of("operation", self._run(f"{_OPERATIONS} {latest}", micros(since), limit))

    def ends(self, since: datetime) -> dict[EventStatus, int]:
        """Return how many of all these have each status."""
        # Grouped by the bare column, SQLite would walk the index over all statuses.
        counted = "SELECT status || '', count(*) FROM operations WHERE live = 0 AND ended >= ?"
        found = self._run(f"{counted} GROUP BY 1", micros(since))
        return {EventStatus(status): many for status, many in found}

    def setting(self, name: str) -> str | None:
        """Return a value that the service saved for itself; None without one."""
        kept: str | None = self._one("setting", name)
        return kept

    def position(self) -> Position:
        """Return the place of the last change of the outbox."""
        if self._last is None:
            found = self._run("SELECT number, token FROM changes ORDER BY number DESC LIMIT 1")
            self._last = Position(*found[0]) if found else Position()
        return self._last

    def changes_after(self, sequence: int, limit: int) -> list[ChangeRecord]:
        """Return up to `limit` changes with greater numbers, in their order.

        The first of them has the number `sequence + 1`, unless that was trimmed.
        """
        columns = "number, token, replica, at, format, tally, body"
        following = f"SELECT {columns} FROM changes WHERE number > ? ORDER BY number LIMIT ?"
        found = self._run(following, sequence, limit)
        return [
            ChangeRecord(
                sequence=number,
                token=token,
                replica=replica,
                at=moment(at),
                format=form,
                tally=tally,
                body=body.encode(),
            )
            for number, token, replica, at, form, tally, body in found
        ]

    def news_after(self, sequence: int, limit: int) -> list[NewsRecord]:
        """Return the news of up to `limit` transactions with greater numbers, in their order."""
        following = "SELECT number, at, items FROM news WHERE number > ? ORDER BY number LIMIT ?"
        return [
            NewsRecord(sequence=number, at=moment(at), items=items.encode())
            for number, at, items in self._run(following, sequence, limit)
        ]

    def news_trimmed(self) -> int:
        """Return the number of the last transaction whose news was trimmed; 0 without one."""
        return self._number(TRIMMED_NEWS)

    def outcomes(self, numbers: Collection[int]) -> dict[int, dict[EventStatus, int]]:
        """Return the number of operations of these maintenances in each status."""
        counted = (
            "SELECT maintenance, status, count(*) FROM operations WHERE maintenance {among} "
            "GROUP BY maintenance, status"
        )
        found: dict[int, dict[EventStatus, int]] = {}
        for number, status, many in self._among(counted, numbers):
            found.setdefault(number, {})[EventStatus(status)] = many
        return found

    def replicas(self) -> dict[str, Replica]:
        """Return each replica's latest report of itself, by name."""
        return {
            name: msgspec.structs.replace(decoded("replica", body), beat_at=moment(beat))
            for name, beat, body in self._run("SELECT name, beat, body FROM replicas")
        }

    def sightings(self, since: datetime | None = None) -> dict[str, Sighting]:
        """Return the replicas' sightings of machines, by key, as far as written since then."""
        columns = "SELECT machine, asked, version, agent, reason FROM sightings"
        if since is None:
            found = self._run(columns)
        else:
            found = self._run(f"{columns} WHERE saved >= ?", micros(since))
        return {
            machine: Sighting(
                asked_at=moment(asked), version=version, agent=_AGENTS[agent], reason=reason
            )
            for machine, asked, version, agent, reason in found
        }

    def tokens(self) -> dict[str, Token]:
        """Return the tokens of operators by name, in the order of names."""
        return dict(sorted(self._state("token").items()))

    def webhooks(self) -> dict[str, Webhook]:
        """Return the webhooks by name, in the order of names."""
        return dict(sorted(self._state("webhook").items()))

    def relays(
        self, hosts: Collection[str] | None = None, since: datetime | None = None
    ) -> dict[str, Relay]:
        """Return the latest reports of these hosts' relays, or of all, if they came since then."""
        columns = "SELECT heard, due, held, body FROM relays"
        if hosts is not None:
            found = self._among(f"{columns} WHERE host {{among}}", hosts)
        elif since is not None:
            found = self._run(f"{columns} WHERE heard >= ?", micros(since))
        else:
            found = self._run(columns)
        return {
            one.host: one
            for one in (_relay(*row) for row in found)
            if since is None or one.heard_at >= since
        }

    def audit(self, query: AuditQuery) -> list[AuditRecord]:
        """Return records of the audit log, the newest first."""
        if "\0" in query.by:
            return []
        before = 2**63 - 1 if query.before is None else query.before
        wanted = [("number < ?", [before]), *_between("at", query.since, query.until)]
        if query.by:
            wanted.append(("by = ?", [query.by]))
        if not query.logins:
            wanted.append(("login = 0", []))
        latest = "SELECT number, body FROM audit", "number DESC"
        found = self._connection.run(*_first(*latest, wanted, query.limit))
        return [
            msgspec.structs.replace(decoded("audit", body), sequence=number)
            for number, body in found
        ]

    def _run(self, sql: str, *values: object) -> list[Row]:
        return self._connection.run(sql, values)

    def _among(self, sql: str, keys: Iterable[Any]) -> list[Row]:
        """Run a statement for the keys, each once; PostgreSQL would not look for one with a NUL."""
        wanted = [one for one in dict.fromkeys(keys) if not isinstance(one, str) or "\0" not in one]
        return self._connection.run(sql, (self._connection.keys(wanted),)) if wanted else []

    def _state(self, kind: str) -> dict[str, Any]:
        return {name: decoded(kind, body) for name, body in self._bodies(kind)}

    def _bodies(self, kind: str) -> Iterable[Row]:
        return self._connection.each("SELECT key, body FROM state WHERE kind = ?", (kind,))

    def _one(self, kind: str, name: str) -> Any:  # noqa: ANN401 - of that kind
        found = self._run("SELECT body FROM state WHERE kind = ? AND key = ?", kind, name)
        return next(iter(values_of(kind, found)), None)

    def _number(self, name: str) -> int:
        return self._one("number", name) or 0


def values_of(kind: str, rows: Iterable[Row]) -> list[Any]:
    """Return the values of rows that are bodies alone."""
    return [decoded(kind, body) for (body,) in rows]


def _by_id(rows: Iterable[Row]) -> dict[str, Operation]:
    return {one.id: one for one in values_of("operation", rows)}


def _relay(heard: int, due: int, held: int | None, body: str) -> Relay:
    relay: Relay = decoded("relay", body)
    held_for = None if held is None else moment(held)
    dates = {"heard_at": moment(heard), "due_at": moment(due), "held_for": held_for}
    return msgspec.structs.replace(relay, **dates)


def _page(query: HistoryQuery) -> tuple[str, list[Any]]:
    """Return the statement for a page and, if there is more, one operation beyond it."""
    wanted = _between("o.announced", query.since, query.until)
    if query.after is not None:
        announced, number = query.after
        wanted.append(("(o.announced, o.number) < (?, ?)", [micros(announced), number]))
    for name in ("machine", "scope"):
        if key := getattr(query, name):
            found = "o.id IN (SELECT operation FROM names WHERE name = ?)"
            wanted.append((found, [f"{name} {key}"]))
    if query.maintenance is not None:
        wanted.append(("o.maintenance = ?", [query.maintenance]))
    for column, members in (("type", query.event_types), ("status", query.statuses)):
        if members:
            marks = ", ".join("?" * len(members))
            wanted.append((f"o.{column} IN ({marks})", [one.value for one in members]))
    return _first(_PAGE, "o.announced DESC, o.number DESC", wanted, query.limit + 1)


def _between(column: str, since: datetime | None, until: datetime | None) -> list[Condition]:
    limits = ((f"{column} >= ?", since), (f"{column} < ?", until))
    return [(condition, [micros(at)]) for condition, at in limits if at is not None]


def _first(
    select: str, order: str, wanted: Sequence[Condition], limit: int
) -> tuple[str, list[Any]]:
    """Return the statement for the first rows that fit all conditions, with its values."""
    where = f" WHERE {' AND '.join(condition for condition, _ in wanted)}" if wanted else ""
    values = [value for _, values in wanted for value in values]
    return f"{select}{where} ORDER BY {order} LIMIT ?", [*values, limit]
