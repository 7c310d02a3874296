"""The tables, and the kinds of values that are in them.

Texts are JSON, as `msgspec` writes the structs of the model; numbers have 64 bits, and times are
whole microseconds since 1970 in UTC. A column beside a body is one that a question searches. Both
engines take the same texts: PostgreSQL has its own words for a number and for how full a page is.

    state         all live state but operations and maintenances: one row for each value
    operations    those that are live and those that are over
    names         the search keys of an operation: its machines, scopes and events
    maintenances  likewise, and which are open
    changes, news the changes of each transaction, and their news for outsiders
    audit         the requests of operators
    replicas, sightings, relays
                  facts that no decision has made: the latest reports and sightings
"""

import sys
from collections.abc import Callable
from typing import Any, Final

import msgspec

from forewarn.maintenance import accounts, model
from forewarn.maintenance.relays import Relay
from forewarn.maintenance.webhooks import Webhook
from forewarn.store.port import Replica, StoreUnusable, micros
from forewarn.vocabulary import EventStatus

VERSION: Final = "3"
"""The schema that this release reads and writes."""

TABLES: Final[dict[str, tuple[str, ...]]] = {
    "meta": ("name TEXT PRIMARY KEY, value TEXT NOT NULL",),
    "changes": (
        """number INTEGER PRIMARY KEY, token TEXT NOT NULL, replica TEXT NOT NULL,
        at INTEGER NOT NULL, format INTEGER NOT NULL, tally INTEGER NOT NULL,
        body TEXT NOT NULL""",
    ),
    "news": ("number INTEGER PRIMARY KEY, at INTEGER NOT NULL, items TEXT NOT NULL",),
    "state": (
        "kind TEXT NOT NULL, key TEXT NOT NULL, body TEXT NOT NULL, PRIMARY KEY (kind, key)",
    ),
    "operations": (
        # The order of first saving breaks the ties of times, so that pages of history are stable.
        """number {SERIAL}, id TEXT NOT NULL UNIQUE, maintenance INTEGER NOT NULL,
        announced INTEGER NOT NULL, ended INTEGER, live INTEGER NOT NULL, failed INTEGER NOT NULL,
        type TEXT NOT NULL, status TEXT NOT NULL, body TEXT NOT NULL""",
        "(announced, number)",
        "(maintenance)",
        "(status, announced, number)",
        "(number) WHERE live = 1",
        "(ended, number) WHERE live = 0",
        "(ended, number) WHERE failed = 1",
    ),
    "names": (
        "name TEXT NOT NULL, operation TEXT NOT NULL, PRIMARY KEY (name, operation)",
        "(operation)",
    ),
    "maintenances": (
        "number INTEGER PRIMARY KEY, open INTEGER NOT NULL, key TEXT NOT NULL, body TEXT NOT NULL",
        "(number) WHERE open = 1",
        "(key, number) WHERE key <> ''",
    ),
    "audit": (
        """number INTEGER PRIMARY KEY, at INTEGER NOT NULL, by TEXT NOT NULL,
        done INTEGER NOT NULL, login INTEGER NOT NULL, body TEXT NOT NULL""",
        "(at)",
        "(by, number)",
        "(number) WHERE done = 0",
    ),
    "replicas": ("name TEXT PRIMARY KEY, beat INTEGER NOT NULL, body TEXT NOT NULL",),
    "sightings": (
        """machine TEXT PRIMARY KEY, asked INTEGER NOT NULL, saved INTEGER NOT NULL,
        version TEXT NOT NULL, agent TEXT NOT NULL, reason TEXT NOT NULL""",
        "(saved)",
    ),
    "relays": (
        """host TEXT PRIMARY KEY, heard INTEGER NOT NULL, due INTEGER NOT NULL, held INTEGER,
        body TEXT NOT NULL""",
        "(heard)",
    ),
}
"""The columns of each table, and those of its indexes."""


def fault_of(version: str) -> str:
    """Return the reason why this release cannot use a schema, and the remedy; `""` if it can."""
    if version == VERSION:
        return ""
    if not version:
        return (
            "a build before the first release wrote it: move it away, and apply the fleet file to "
            "a new one"
        )
    return (
        f"another release of Forewarn wrote it, with the schema {version!r}; this release has "
        f"{VERSION!r}: install that release, or name another one"
    )


def columns_of(table: str) -> list[str]:
    """Return the names of a table's columns."""
    columns = TABLES[table][0].partition(", PRIMARY KEY")[0]
    return [column.split()[0] for column in columns.split(",")]


def statements(serial: str, number: str, options: dict[str, str]) -> list[str]:
    """Return the statements that make the tables.

    Args:
        serial: The type of a key that counts by itself.
        number: The type of a number of 64 bits.
        options: An engine's own options for a table.
    """
    found = []
    for table, (columns, *indexes) in TABLES.items():
        typed = columns.replace("INTEGER", number).replace("{SERIAL}", serial)
        found.append(f"CREATE TABLE {table} ({typed}) {options.get(table, '')}".rstrip())
        found += [
            f"CREATE INDEX {table}_{n} ON {table} {over}" for n, over in enumerate(indexes, 1)
        ]
    return [*found, f"INSERT INTO meta VALUES ('schema', '{VERSION}')"]  # noqa: S608 - ours


KINDS: Final[dict[str, Any]] = {
    "scope": model.Scope,
    "machine": model.Machine,
    "hold": model.Hold,
    "tombstone": model.Tombstone,
    "drain": model.Drain,
    "token": accounts.Token,
    "webhook": Webhook,
    "retired": int,
    "setting": str,
    "number": int,
}
"""The types of the values in `state`, by their `kind`. A `number` is the last one that was given,
`retired` the last incarnation of a scope that was removed, under `""` of those forgotten."""

SHOWN_BODY: Final = 80
"""The characters of a row that cannot be read which its error shows: its name is among them."""

encode = msgspec.json.Encoder().encode
_decoders = {
    kind: msgspec.json.Decoder(value).decode
    for kind, value in (
        *KINDS.items(),
        ("operation", model.Operation),
        ("maintenance", model.Maintenance),
        ("audit", accounts.AuditRecord),
        ("relay", Relay),
        ("replica", Replica),
    )
}


def decoded(kind: str, body: str) -> Any:  # noqa: ANN401 - of that kind
    """Return a value of a row.

    Raises:
        StoreUnusable: A newer release wrote it, or it is damaged: nobody may guess what it was.
    """
    try:
        return _decoders[kind](body)
    except msgspec.DecodeError as error:
        raise StoreUnusable(
            f"cannot read a {kind} of the database: {error}: {body[:SHOWN_BODY]!r}: install the "
            "release that wrote it, or restore a backup if it is damaged"
        ) from error


def sharing() -> Callable[[model.Machine], None]:
    """Return a function that makes each machine share equal parts with earlier ones.

    Each row is decoded by itself: 100,000 machines would take 60 MiB more.
    """
    profiles: dict[model.Profile, model.Profile] = {}
    tags: dict[Any, Any] = {}
    alter = msgspec.structs.force_setattr

    def share(one: model.Machine) -> None:
        alter(one, "profile", profiles.setdefault(one.profile, one.profile))
        alter(one, "tags", tags.setdefault(one.tags, one.tags))
        for name in ("scope", "host", "listener", "role"):
            alter(one, name, sys.intern(getattr(one, name)))

    return share


def names_of(operation: model.Operation) -> list[str]:
    """Return the search keys of an operation."""
    events = operation.all_events
    machines = {f"machine {model.key(name)}" for event in events for name in event.machines}
    scopes = {f"scope {event.scope}" for event in events}
    return sorted({f"event {event.id}" for event in events} | scopes | machines)


def _of_operation(one: model.Operation) -> tuple[Any, ...]:
    return (
        one.maintenance,
        micros(one.announced_at),
        None if one.ended_at is None else micros(one.ended_at),
        int(one.live),
        int(one.status is EventStatus.FAILED and not one.acknowledged_by),
        one.event_type.value,
        one.status.value,
    )


def _of_maintenance(one: model.Maintenance) -> tuple[Any, ...]:
    return int(one.open), one.idempotency_key


ROWS: Final[dict[str, tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]]] = {
    "operations": (tuple(columns_of("operations")[1:]), _of_operation),
    "maintenances": (tuple(columns_of("maintenances")), _of_maintenance),
}
"""The columns that are written of a value, from its key's to its body's; and a function that
returns those between, which are searched."""
