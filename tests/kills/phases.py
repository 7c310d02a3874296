"""Where each kill fell: in which requests, and in which phase of which acts.

This counts and never judges, so it may look at what the service left on disk: a copy of the
database as the kill left it, taken before the next start.
"""

import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple


class Phase(StrEnum):
    """Of an act, from the instant at which its operation is Started."""

    BEFORE_CLAIM = "before claim"
    BEGUN = "claimed and begun"
    RUNNING = "program running"
    UNRECORDED = "finished, not recorded"
    RETURNING = "recorded, machines not back"
    RECORDED = "recorded"


class Start(StrEnum):
    """Of a start of the service; each begins where `served` marks it."""

    OPENING = "opening the store"
    MIGRATING = "migrating the store"
    RECOVERING = "recovering what the last life left"
    FILLING = "filling memory"
    BINDING = "opening the sockets"
    TAKING_UP = "sockets open, taking acts up again"


class Left(NamedTuple):
    """An operation as a kill left it."""

    status: str
    claimed: bool
    machines: int


_OPERATIONS = """
SELECT id, status, body ->> '$.lease_until' IS NOT NULL,
       (SELECT sum(json_array_length(value, '$.machines')) FROM json_each(body, '$.events'))
FROM operations
"""


class Kill(NamedTuple):
    """One SIGKILL."""

    before: float
    """The machine's time just before it was sent."""
    after: float
    aim: str
    fresh: bool
    """Whether its process was started anew, not forked."""
    phases: dict[Phase, int]
    """How many acts were in each."""
    start: Start | None = None
    """Where the start was that it fell in; None for one that served."""


def left_behind(database: Path, scratch: Path) -> dict[str, Left]:
    """Return the operations as a kill left them in the store."""
    for end in ("", "-wal"):
        source = database.with_name(database.name + end)
        copy = scratch / f"copy.db{end}"
        copy.unlink(missing_ok=True)
        if source.exists():
            shutil.copyfile(source, copy)
    (scratch / "copy.db-shm").unlink(missing_ok=True)
    with closing(sqlite3.connect(scratch / "copy.db")) as connection:
        try:
            rows = connection.execute(_OPERATIONS).fetchall()
        except sqlite3.OperationalError as error:
            assert "no such table" in str(error)  # killed before there was one
            return {}
    return {name: Left(status, bool(claimed), count) for name, status, claimed, count in rows}


def of_kill(
    after: Mapping[str, Left], earlier: Iterable[str], runs: Iterable[Mapping[str, Any]]
) -> dict[Phase, int]:
    """Return how many acts were in each phase at a kill.

    Args:
        after: What `left_behind` found.
        earlier: The operations that were over at the kill before: they are not counted again.
        runs: What the program had logged by then.
    """
    starts: Counter[str] = Counter()
    ends: Counter[str] = Counter()
    for run in runs:
        (starts if run["what"] == "start" else ends)[run["operation"]] += 1
    known = set(earlier)
    found: Counter[Phase] = Counter()
    for name, (status, claimed, machines) in after.items():
        if status in {"Completed", "Failed"}:
            if name not in known:
                found[Phase.RECORDED] += 1
        elif status == "Returning":
            found[Phase.RETURNING] += 1
        elif status == "Started":
            if ends[name] >= machines:
                found[Phase.UNRECORDED] += 1
            elif starts[name]:
                found[Phase.RUNNING] += 1
            else:
                found[Phase.BEGUN if claimed else Phase.BEFORE_CLAIM] += 1
    return dict(found)


def in_request(kill: Kill, journals: Iterable[Iterable[Mapping[str, Any]]]) -> bool:
    """Tell whether a request had begun by this kill and was never answered because of it.

    Args:
        kill: Which.
        journals: What the clients wrote down.
    """
    return any(
        entry["what"] == "unanswered" and entry["first"] <= kill.before <= entry["at"]
        for journal in journals
        for entry in journal
    )
