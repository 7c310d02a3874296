"""What a relay knows of its host, and which news it takes.

News comes from a replica that may be behind, of another release, or somebody else. What does not
fit is refused whole: the documents stay as they were, and the relay asks for a snapshot. So no
answer of anybody's ever empties a document that a guest reads; only news that fits does.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final, TypeVar

import msgspec

from forewarn.maintenance.model import Machine
from forewarn.server.relay_feed import GuestRules, News, ScopeDocument

V = TypeVar("V")

MAX_MACHINES: Final = 20_000
"""The most machines of a host that are taken: more than any host has, in 100 MB."""

MAX_POSITION: Final = 200
"""Characters of a position: the service's own have 40."""


class NewsFault(StrEnum):
    """Why news is refused: a metric's label."""

    OTHER_HOST = "other-host"
    """It is of another host than the news before: the token is another host's."""
    BACKWARDS = "backwards"
    """It is older than what the relay has: the replica is behind."""
    NO_BASE = "no-base"
    """It says what changed since something that the relay does not have."""
    INCOMPLETE = "incomplete"
    """It has a machine without the document that the machine reads."""
    LIMIT = "limit"
    """It has more machines than MAX_MACHINES, or a position over MAX_POSITION."""


class NewsRefused(Exception):  # noqa: N818 - a fault of the sender's, not of ours
    """News that is not taken; nothing changed."""

    def __init__(self, fault: NewsFault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


class HostDocuments(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the relay knows of its host."""

    host: str
    position: str
    rules: GuestRules = GuestRules()
    machines: dict[str, Machine] = {}
    """By key. Replaced with each change, never changed."""
    documents: dict[str, ScopeDocument] = {}
    """By the scope's key; likewise."""


def take(held: HostDocuments | None, news: News) -> tuple[HostDocuments, News]:
    """Return what the relay knows with this news, and what changed; NewsRefused if it does not fit.

    `held` is None before the first snapshot. What changed is news without what was known before.
    """
    if len(news.position) > MAX_POSITION:
        raise NewsRefused(NewsFault.LIMIT, f"its position is over {MAX_POSITION} characters")
    if held is not None and news.host != held.host:
        raise NewsRefused(
            NewsFault.OTHER_HOST, f"it is of host {news.host[:100]!r}, and this is {held.host!r}"
        )
    if held is not None and _is_behind(news.position, held.position):
        message = f"its position {news.position[:100]!r} is before {held.position!r}"
        raise NewsRefused(NewsFault.BACKWARDS, message)
    if not news.snapshot and (held is None or epoch(held.position) != epoch(news.position)):
        raise NewsRefused(NewsFault.NO_BASE, "it is no snapshot, and does not follow what is known")
    before = held or HostDocuments(host=news.host, position="")
    base = HostDocuments(host=news.host, position="") if news.snapshot else before
    told = {each.key: each for each in news.machines}
    machines = {**base.machines, **told}
    documents = {**base.documents, **{each.scope.key: each for each in news.scopes}}
    for key in news.removed_machines:
        machines.pop(key, None)
    for key in news.removed_scopes:
        documents.pop(key, None)
    if len(machines) > MAX_MACHINES:
        message = f"it has {len(machines)} machines, and at most {MAX_MACHINES} are taken"
        raise NewsRefused(NewsFault.LIMIT, message)
    # A host may have thousands of machines, and news of one: the others were looked at before.
    for machine in (machines if news.removed_scopes else told).values():
        if machine.scope not in documents and machine.key in machines:
            message = f"it has machine {machine.name!r} without its scope {machine.scope!r}"
            raise NewsRefused(NewsFault.INCOMPLETE, message)
    after = HostDocuments(
        host=news.host,
        position=news.position,
        rules=before.rules if news.rules is None else news.rules,
        machines=machines,
        documents=documents,
    )
    gone: tuple[Iterable[str], Iterable[str]] = (news.removed_machines, news.removed_scopes)
    if news.snapshot:
        gone = before.machines, before.documents
    change = News(
        host=after.host,
        position=after.position,
        machines=_changed(before.machines, machines, told),
        removed_machines=_removed(before.machines, machines, gone[0]),
        scopes=_changed(before.documents, documents, [each.scope.key for each in news.scopes]),
        removed_scopes=_removed(before.documents, documents, gone[1]),
        rules=None if after.rules == before.rules else after.rules,
    )
    return after, change


def _changed(before: Mapping[str, V], after: Mapping[str, V], keys: Iterable[str]) -> tuple[V, ...]:
    return tuple(after[key] for key in keys if key in after and before.get(key) != after[key])


def _removed(
    before: Mapping[str, V], after: Mapping[str, V], keys: Iterable[str]
) -> tuple[str, ...]:
    return tuple(key for key in dict.fromkeys(keys) if key in before and key not in after)


def snapshot(held: HostDocuments) -> News:
    """Return the news that holds all of it."""
    return News(
        host=held.host,
        position=held.position,
        snapshot=True,
        machines=tuple(held.machines.values()),
        scopes=tuple(held.documents.values()),
        rules=held.rules,
    )


def epoch(position: str) -> str:
    """Return what a position begins with: within one epoch, positions only grow."""
    return position.rpartition(".")[0]


def _is_behind(new: str, old: str) -> bool:
    number, known = new.rpartition(".")[2], old.rpartition(".")[2]
    if epoch(new) != epoch(old) or not (number.isdecimal() and known.isdecimal()):
        return False  # of another epoch, or of a form that a later release gave it
    return int(number) < int(known)
