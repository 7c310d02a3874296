"""What a relay knows of its host, and which news it takes.

News comes from a replica that may be behind, of another release, or somebody else. What does not
fit is refused whole: the documents stay as they were, and the relay asks for a snapshot. So no
answer of anybody's ever empties a document that a guest reads; only news that fits does.
"""

from enum import StrEnum
from typing import Final

import msgspec

from forewarn.maintenance.model import Machine
from forewarn.server.relay_feed import GuestRules, News, ScopeDocument

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


class HostChange(msgspec.Struct, frozen=True, kw_only=True):
    """What the guest plane is told of news that was taken."""

    documents: tuple[ScopeDocument, ...] = ()
    removed_scopes: tuple[str, ...] = ()
    machines: tuple[Machine, ...] = ()
    removed_machines: tuple[str, ...] = ()
    rules: GuestRules | None = None
    """None where they are as before."""

    def __bool__(self) -> bool:
        """Whether anything changed."""
        return any(getattr(self, field) for field in self.__struct_fields__)


def take(held: HostDocuments | None, news: News) -> tuple[HostDocuments, HostChange]:
    """Return what the relay knows with this news, and what changed; NewsRefused if it does not fit.

    `held` is None before the first snapshot.
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
    machines = {**base.machines, **{each.key: each for each in news.machines}}
    documents = {**base.documents, **{each.scope.key: each for each in news.scopes}}
    for key in news.removed_machines:
        machines.pop(key, None)
    for key in news.removed_scopes:
        documents.pop(key, None)
    if len(machines) > MAX_MACHINES:
        message = f"it has {len(machines)} machines, and at most {MAX_MACHINES} are taken"
        raise NewsRefused(NewsFault.LIMIT, message)
    for machine in machines.values():
        if machine.scope not in documents:
            message = f"it has machine {machine.name!r} without its scope {machine.scope!r}"
            raise NewsRefused(NewsFault.INCOMPLETE, message)
    rules = before.rules if news.rules is None else news.rules
    after = HostDocuments(
        host=news.host,
        position=news.position,
        rules=rules,
        machines=machines,
        documents=documents,
    )
    return after, difference(before, after)


def difference(before: HostDocuments, after: HostDocuments) -> HostChange:
    """Return what changed; documents and machines that are equal did not."""
    return HostChange(
        documents=tuple(
            each for key, each in after.documents.items() if before.documents.get(key) != each
        ),
        removed_scopes=tuple(before.documents.keys() - after.documents.keys()),
        machines=tuple(
            each for key, each in after.machines.items() if before.machines.get(key) != each
        ),
        removed_machines=tuple(before.machines.keys() - after.machines.keys()),
        rules=None if after.rules == before.rules else after.rules,
    )


def epoch(position: str) -> str:
    """Return what a position begins with: within one epoch, positions only grow."""
    return position.rpartition(".")[0]


def _is_behind(new: str, old: str) -> bool:
    number, known = new.rpartition(".")[2], old.rpartition(".")[2]
    if epoch(new) != epoch(old) or not (number.isdecimal() and known.isdecimal()):
        return False  # of another epoch, or of a form that a later release gave it
    return int(number) < int(known)
