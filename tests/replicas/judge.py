"""Judges replicas: what a single service promises, and that they are one service.

Who asks the same replica never reads backwards; who asks another may read, for a moment, what
another has shown before.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any
from typing import Final as Constant

from kills import judge as single
from kills.evidence import Final, Journals

CLOCKS_SECONDS: Constant = 0.25
"""How far replicas' clocks may be apart: each follows the database's once it is 0.1 s off, and asks
over a connection that a busy machine holds up."""

STALE_SECONDS: Constant = 2.0
"""The longest that a replica with its database may show what another has replaced: a wake-up that
was lost is made up for within a second, and the machine is a busy one."""


def judge(
    journals: Journals,
    runs: list[dict[str, Any]],
    finals: Sequence[Final],
    stale_seconds: float = STALE_SECONDS,
) -> list[str]:
    """Return what is wrong, each in a sentence.

    Args:
        journals: What each client wrote down, in its order.
        runs: What the connector's program wrote down, in its order.
        finals: What each replica shows at the end.
        stale_seconds: The longest that a guest may read what another guest has read replaced.
    """
    return [
        *single.judge(journals, runs, _widened(finals[0])),
        *_replicas_agree(finals),
        *_nothing_is_stale_for_long(journals, stale_seconds),
    ]


def _widened(final: Final) -> Final:
    """Allow for what replicas' clocks differ by: the time that is told here is one's alone."""
    began, ended = final.read_between
    return final._replace(read_between=(began - CLOCKS_SECONDS, ended + CLOCKS_SECONDS))


def _replicas_agree(finals: Sequence[Final]) -> Iterator[str]:
    first = finals[0]
    for number, other in enumerate(finals[1:], 2):
        for name, one, two in (
            ("documents", first.documents, other.documents),
            ("operations", first.operations, other.operations),
            ("maintenances", first.maintenances, other.maintenances),
        ):
            for key in one.keys() | two.keys():
                if one.get(key) != two.get(key):
                    yield (
                        f"replicas 1 and {number} show {name} {key} differently: {one.get(key)} "
                        f"and {two.get(key)}"
                    )


def _nothing_is_stale_for_long(journals: Journals, seconds: float) -> Iterator[str]:
    read: dict[str, list[tuple[float, float, int, str]]] = defaultdict(list)
    for name, entries in journals.items():
        for entry in entries:
            if entry["what"] == "read":
                number = entry["document"]["DocumentIncarnation"]
                reader = f"{name} at replica {entry['replica'] + 1}"
                read[entry["scope"]].append((entry["at"], entry["began"], number, reader))
    for scope, entries in read.items():
        known = sorted((at, number) for at, _, number, _ in entries)
        newest, position = 0, 0
        for _, began, number, reader in sorted(entries, key=lambda entry: entry[1]):
            while position < len(known) and known[position][0] <= began - seconds:
                newest = max(newest, known[position][1])
                position += 1
            if number < newest:
                yield (
                    f"{reader} read incarnation {number} of {scope}, more than {seconds} s "
                    f"after {newest} had been read"
                )
