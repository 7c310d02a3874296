"""Judges replicas: what a single service promises, and that they are one service.

Who asks the same replica never reads backwards; who asks another may read, for a moment, what
another has shown before. Nobody is blamed for how long: on a busy machine it is the machine's.
"""

from collections.abc import Iterator, Sequence
from typing import Any
from typing import Final as Constant

from kills import judge as single
from kills.judge import Final, Journals

CLOCKS_SECONDS: Constant = 2.0
"""The most by which replicas' clocks may part. Each follows the database's little by little,
and asks over a connection that a busy machine holds up; a replica that is off by more ends."""

STALE_SECONDS: Constant = 30.0
"""The time for which an answer of one replica proves nothing about the others: many times the lag
of a replica, and of a relay that looks for another one while replicas are killed."""


def judge(journals: Journals, runs: list[dict[str, Any]], finals: Sequence[Final]) -> list[str]:
    """Return what is wrong, each in a sentence.

    Args:
        journals: What each client wrote down, in its order.
        runs: What the connector's program wrote down, in its order.
        finals: What each replica shows at the end.
    """
    return [
        *single.judge(journals, runs, _widened(finals[0])),
        *_replicas_agree(finals),
    ]


def _widened(final: Final) -> Final:
    """Allow for what replicas' clocks differ by: the time that is told here is one's alone."""
    return final._replace(read_from=final.read_from - CLOCKS_SECONDS, stale_seconds=STALE_SECONDS)


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
