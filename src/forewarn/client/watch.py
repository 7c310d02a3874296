"""The watch's decider: answers, failures and time in; changes and the next question out.

For any sequence of answers and failures it promises: an event that was seen appears, starts at most
once, and is gone after two documents in a row did not list it, neither of a replica that is behind;
if it is listed again after that, it appears again. In a watch of this machine's own events it is
gone, too, once it names this machine no longer. A watch that is cut anywhere and resumed from its
state repeats the change that the caller had in hand, and goes on with the current events.
"""

import operator
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final, Literal, TypeAlias

import msgspec

from forewarn.client import event, session
from forewarn.client.discovery import EndpointAddress
from forewarn.client.event import Misuse
from forewarn.protocol import codec
from forewarn.protocol.codec import Listed, Listing
from forewarn.protocol.message import Reply, ascii_lower, ascii_upper, shown
from forewarn.vocabulary import EventSource, EventStatus, EventType

LEAST_GAP_SECONDS: Final = 0.05
"""Between two questions, however often the document changes: twenty documents a second. Also before
the document that confirms an end."""

SECOND_LOOK_SECONDS: Final = 2.0
"""For the answer that confirms an end: the rest of the document before waits for it."""

TRY_WAITING_SECONDS: Final = 60.0
"""The time to poll a server that did not wait before asking it to wait again: it may have had too
many waiting clients."""

BEHIND_SECONDS: Final = 15.0
"""The longest time for which the documents of a replica that is behind, with lower incarnations,
end no event: one that is cut off from its database says so after five seconds, and a balancer
notices. After that the server has lost its memory."""

UNREADABLE: Final = "unreadable"
"""The reason of the trouble that one event of an answer, of several, is unreadable."""

NO_NAME: Final = "no-name"
"""The reason of the trouble that the name is unknown, and with it which events concern this
machine."""

MISNAMED, NAMED = "misnamed", "named"
"""The reasons of the troubles that the endpoint has another name for this machine than the caller
gave, so that its events count as another's, and no longer has."""

FORMAT: Final = 2
"""The format of the JSON; another one is refused."""

ChangeKind: TypeAlias = Literal["appeared", "started", "updated", "gone", ""]
"""The kind of a change; `""` for one that is not reported to the caller."""


class EventFilter(msgspec.Struct, frozen=True, kw_only=True):
    """A filter for the events that a watch reports."""

    types: frozenset[str] | None = None
    """In lower case; None for every type."""
    mine: bool = False
    """True to leave out events that concern other machines only. Events are reported while this
    machine's name is unknown: one notice too many is better than one too few."""

    def wants(self, seen: event.Event) -> bool:
        """Return True to report an event."""
        if self.mine and seen.concerns_me is False:
            return False
        return self.types is None or ascii_lower(seen.event_type) in self.types

    def left(self, before: event.Event, now: Listed | None, name: str | None) -> bool:
        """Return True if an event has left this machine, of this name, for good.

        Machines drop out of the event of a host that they leave before it starts.
        """
        if not self.mine or now is None or not now.resources or name is None:
            return False
        here = codec.concerns(before.resources, name)
        return here and not codec.concerns(now.resources, name)


def event_filter(types: Iterable[str] | None, *, mine: bool) -> EventFilter:
    """Return the filter that a caller describes."""
    if types is None:
        return EventFilter(mine=mine)
    wanted = () if isinstance(types, str) else tuple(types)
    if not wanted or not all(isinstance(each, str) for each in wanted):
        raise Misuse(f"invalid types={types!r}: expected event types, such as ['Reboot', 'Freeze']")
    return EventFilter(types=frozenset(ascii_lower(each) for each in wanted), mine=mine)


class ReadDocument(msgspec.Struct, frozen=True):
    """A document, with the times at which it was read and sent."""

    events: dict[str, Listed]
    at: session.ClockReading
    sent: datetime | None
    """The server's Date."""
    nameless: tuple[tuple[str, ...], ...] = ()
    """The names in the Resources of each entry without an EventId."""
    is_behind: bool = False
    """True if it is older than one before: an event that it does not list may be newer."""

    def lacks(self, key: str, resources: Iterable[str]) -> bool:
        """Return True if it lists neither an event, nor an entry without an id that may be it."""
        return (
            not self.is_behind
            and key not in self.events
            and not any(
                not names or any(codec.concerns(names, name) for name in resources)
                for names in self.nameless
            )
        )


class KnownEvent(msgspec.Struct, frozen=True):
    """The knowledge about one event."""

    event: event.Event
    told: bool
    """True if its appearance was reported: otherwise its end is not reported either."""
    started: bool
    missing: bool = False
    """True if the last document did not list it: the next one confirms its end."""
    handled: bool = True
    """True if the caller was done with its appearance, and has not got its end yet. If not, the
    next process reports the appearance again, unless the event has started or ended meanwhile."""


class PendingChange(msgspec.Struct, frozen=True):
    """One change of one event."""

    key: str
    kind: ChangeKind
    after: KnownEvent | None
    """The knowledge about the event afterwards; None once it is gone."""


class WatchState(msgspec.Struct, frozen=True, kw_only=True):
    """The reported events, as a file keeps them from one process to the next."""

    format: int = FORMAT
    known: dict[str, KnownEvent] = {}
    """By the EventId in upper case, in the order of appearance."""


class Watcher:
    """Decides the questions of a watch, their times, and its reports; resumes from a state `since`.

    Without a filter it reports whole documents. These are not held back until an end is confirmed:
    only among changes the order counts, and ended events come first. But the first one waits for
    one more answer, if it does not list all of `events`, which an earlier process saw. If it lists
    nothing, it waits until their end is confirmed.
    """

    def __init__(
        self,
        known: session.Session,
        wanted: EventFilter | None,
        since: str | None,
        at: session.ClockReading,
        events: Iterable[event.Event] = (),
    ) -> None:
        self.looks = 0
        self.answered_at: float | None = None
        """When the last of them came, by the monotonic clock; None before the first."""
        self._session = known
        self._filter = wanted or EventFilter()
        self._whole = not wanted
        self._known = {} if since is None else read_state(since, at)
        """By the EventId in upper case, in the order of appearance."""
        self._resumed = set(self._known)
        """Events of `since` that no answer has listed yet: their notice is by our own clock."""
        self._pending: list[PendingChange] = []
        """Changes to tell, in order."""
        self._in_hand = False
        """True if the caller got the first of them, and is not done with it."""
        for each in events:
            seen = msgspec.structs.replace(each, starts_by=None)
            known_event = KnownEvent(seen, told=True, started=seen.started)
            self._known[ascii_upper(each.event_id)] = known_event
        self.troubles: deque[event.Trouble] = deque()
        """Reports of trouble, to be taken from the left."""
        self._reason = event.OVER
        self._held_back: ReadDocument | None = None
        """A document that lists less than the one before, until a second one confirms it."""
        self._looks_again = False
        """True if the next question is to confirm an end."""
        self._has_document = False
        self._incarnation: int | None = None
        self._newest: int | None = None
        self._behind_since: float | None = None
        """When the first of the documents came that are older than `_newest`; None for none."""
        self._shown: tuple[event.Event, ...] | None = None
        self._told_no_name = False
        self._misnamed = ""
        self._named = known.name
        """The name by which the last document was read."""
        self._failures = 0
        self._next_at = at.monotonic
        self._asked_at = self._doubted_at = at.monotonic
        self._tag: bytes | None = None
        self._apart: dict[str, float] = {}
        """The lead of our wall clock, and of the server's, over the monotonic one."""
        self._try_waiting_at = at.monotonic
        self._waits: bool | None = None  # None: not known, or to be found out again

    @property
    def endpoint(self) -> EndpointAddress:
        """The address that is asked."""
        return self._session.endpoint

    @property
    def since(self) -> str:
        """The state for the next process if this one ends now, as JSON."""
        told = {key: known for key, known in self._known.items() if known.told}
        if self._in_hand and (change := self._pending[0]).kind in {"appeared", "gone"}:
            # Nobody knows whether it is drained: unless it has started, it appears again.
            known = change.after or self._known[change.key]
            told[change.key] = msgspec.structs.replace(known, handled=False)
        return write_state(told)

    def take(self) -> event.Change | None:
        """Return the next change, None if there is none; the caller is done with the one before."""
        self.settle()
        while self._pending:
            if (change := self._told(self._pending[0])) is not None:
                self._in_hand = True
                return change
            self._apply()
        return None

    def settle(self) -> None:
        """Record that the caller is done with the change that it took last."""
        if self._in_hand:
            self._in_hand = False
            self._apply()

    def _told(self, change: PendingChange) -> event.Change | None:
        """Return the change as reported to the caller; None for an unreported one."""
        before, after = self._known.get(change.key), change.after
        if not change.kind:
            return None
        if after is None:
            assert before is not None  # only a known event ends
            others = (known.told for key, known in self._known.items() if key != change.key)
            return event.Gone(before.event, last=not any(others))
        if change.kind == "appeared":
            return event.Appeared(after.event)
        if change.kind == "started":
            return event.Started(after.event)
        assert before is not None  # only a known event is updated
        return event.Updated(after.event, before.event)

    def _apply(self) -> None:
        change = self._pending.pop(0)
        if change.after is None:
            del self._known[change.key]
        else:
            self._known[change.key] = change.after

    def take_document(self) -> event.Document | None:
        """Take every change; return the document if its events are new since the last call."""
        while self._pending:
            self._apply()
        known = self._known.values()
        in_doubt = bool(known) and all(each.missing for each in known)
        if self._shown is None and (self._looks_again or in_doubt):
            return None
        listed = tuple(each.event for each in known)
        if not self._has_document or listed == self._shown:
            return None
        self._shown = listed
        return event.Document(incarnation=self._incarnation, events=listed)

    def step(self, do: session.Do, at: session.ClockReading) -> None:
        """Pause, or ask for the document or the machine's name, once every change is taken."""
        assert not self._pending  # the next document is compared with what was told
        if at.monotonic < self._next_at:
            self._compare_clocks(do(session.Pause(self._next_at - at.monotonic)))
        elif self._asks_name(at):
            self._learn_name(do, at)
        else:
            question = self._question(at)
            attempt = do(question)
            self._heard_events(question, attempt)
            self._compare_clocks(attempt)

    def _asks_name(self, at: session.ClockReading) -> bool:
        # A name that was given is compared after the first answer: nothing waits for that.
        is_early = self._looks_again or (self._session.is_given and not self.looks)
        return not is_early and self._session.wants_name(at)

    def _question(self, at: session.ClockReading) -> session.Question:
        self._asked_at = at.monotonic
        if self._looks_again:
            return self._session.question().within(SECOND_LOOK_SECONDS)
        polls = self._waits is False and at.monotonic < self._try_waiting_at
        return self._session.question(None if polls else self._tag)

    def _compare_clocks(self, attempt: session.Attempt) -> session.Attempt:
        # The machine may have slept, or was paused, where our wall clock stands still too. Its
        # notice is shorter than it seems: a whole document tells by how much.
        outcome = attempt.outcome
        sent = session.server_time(outcome) if isinstance(outcome, Reply) else None
        for whose, time in (("own", attempt.at.now), ("server's", sent)):
            if time is None:
                continue
            apart = time.timestamp() - attempt.at.monotonic
            if abs(apart - self._apart.setdefault(whose, apart)) > session.CLOCKS_AGREE_SECONDS:
                self._apart[whose], self._tag = apart, None
        return attempt

    def _heard_events(self, question: session.Question, attempt: session.Attempt) -> None:
        outcome = attempt.outcome
        assert outcome is not None  # a question was asked
        if isinstance(outcome, session.FailedAnswer):
            self._failed(question, outcome, attempt)
        elif outcome.status == 304 and attempt.held:
            self._nothing_new(outcome, attempt)
        else:
            found = session.listing_of(outcome, question.endpoint)
            if isinstance(found, session.FailedAnswer):
                self._failed(question, found, attempt)
            else:
                self._session.accepted(question, outcome)
                self._document(found, outcome, attempt)
                if self._session.version != question.version:
                    self._tag = None  # the next one is by another version, which may show more

    def _learn_name(self, do: session.Do, at: session.ClockReading) -> None:
        failure = session.learn_name(
            self._session, lambda wanted: self._compare_clocks(do(wanted)), at
        )
        if failure is None:
            if self._session.name != self._named:
                self._tag = None  # the whole document shows whom it concerns
            self._named = self._session.name
            self._tell_misnamed()
            return
        self._next_at = self._asked_at + LEAST_GAP_SECONDS
        if self._session.name is None and not self._told_no_name:
            self._told_no_name = True
            self._say(NO_NAME, f"this machine's name is not known yet: {failure.message}")

    def _tell_misnamed(self) -> None:
        given, found = self._session.name, self._session.misnamed
        before, self._misnamed = self._misnamed, found
        if found and found != before:
            self._say(
                MISNAMED,
                f"the name {given!r} was given for this machine, but the endpoint calls it "
                f"{found!r}: its events count as another's; correct the name, or give none",
            )
        elif before and not found:
            self._say(NAMED, f"the endpoint calls this machine {given!r} now")

    def _nothing_new(self, reply: Reply, attempt: session.Attempt) -> None:
        self._fine(attempt.at)
        # Forewarn ends a wait early for a machine that has to ask again (protocol.md section 10).
        self._found_waiting(attempt, waits=applied_seconds(reply) > 0)
        self._ask_next(attempt, changes=())

    def _document(self, listing: Listing, reply: Reply, attempt: session.Attempt) -> None:
        self._has_document = True
        self._incarnation = listing.incarnation
        self._fine(attempt.at, listing.unreadable)
        tag = session.header(reply, b"etag")
        if tag is None and listing.incarnation is not None:
            tag = b"%d" % listing.incarnation
        if attempt.held and applied_seconds(reply) > 0:
            self._found_waiting(attempt, waits=True)
        elif attempt.held and tag == self._tag:
            self._found_waiting(attempt, waits=False)
        self._tag = tag
        events = {each.key: each for each in listing.events}
        sent, is_behind = session.server_time(reply), self._is_behind(attempt.at)
        read = ReadDocument(events, attempt.at, sent, listing.nameless, is_behind)
        if is_behind:
            self._tag = None  # not to wait for its next one
        before, self._held_back = self._held_back, None
        is_second, self._looks_again = self._looks_again, False
        changes: list[PendingChange] = []
        if not is_second and any(
            read.lacks(key, known.event.resources) and not known.missing
            for key, known in self._known.items()
        ):
            self._looks_again, self._doubted_at = True, self._asked_at
        if self._looks_again and not self._whole:
            self._held_back = read  # the second question asks without a tag, to wait for nothing
        else:
            changes = self._read([read] if before is None else [before, read])
        if any(change.after is not None and change.after.missing for change in changes):
            self._tag = None  # the next document is to confirm that it is gone
        if is_second and any(change.after is None for change in changes):
            self._asked_at = self._doubted_at  # it confirms an end: it counts with the first look
        self._ask_next(attempt, changes=changes)
        is_new = any(change.key not in self._known for change in changes)
        if self._session.name is None and is_new:  # whose it is may be known by now
            self._session.want_name()
            self._next_at = attempt.at.monotonic
        new = (change.after for change in changes if change.key not in self._known)
        if any(each and each.event.concerns_me is False for each in new):
            self._session.doubt_name()  # it may be this machine's, under another name
            if self._session.wants_name(attempt.at):
                self._next_at = attempt.at.monotonic

    def _is_behind(self, at: session.ClockReading) -> bool:
        """Return True if the last document is older than one before, lately."""
        number, newest, since = self._incarnation, self._newest, self._behind_since
        is_older = number is not None and newest is not None and number < newest
        if not is_older or (since is not None and at.monotonic >= since + BEHIND_SECONDS):
            self._newest, self._behind_since = number, None
            return False
        self._behind_since = at.monotonic if since is None else since
        return True

    def _found_waiting(self, attempt: session.Attempt, *, waits: bool) -> None:
        self._waits = waits
        self._try_waiting_at = attempt.at.monotonic + TRY_WAITING_SECONDS

    def _failed(
        self, question: session.Question, failure: session.FailedAnswer, attempt: session.Attempt
    ) -> None:
        self._tag = self._waits = None
        if self._session.asks_again(failure, question):
            self._next_at = attempt.at.monotonic
            return
        if failure.reason != self._reason:
            self._reason = failure.reason
            self._say(failure.reason, failure.message)
        if self._held_back is not None:  # what is new must not wait until answers come again
            self._read([self._held_back])
            self._held_back = None
        self._looks_again = False
        self._failures += 1
        pause = self._session.pause(self._failures, failure, attempt.chance)
        self._next_at = attempt.at.monotonic + pause.seconds

    def _fine(self, at: session.ClockReading, faults: Sequence[str] = ()) -> None:
        self.looks += 1
        self.answered_at = at.monotonic
        self._failures = 0
        if faults and self._reason != UNREADABLE:
            self._reason = UNREADABLE
            self._say(UNREADABLE, f"the answer {shown(faults[0])}")
        elif not faults and self._reason != event.OVER:
            self._reason = event.OVER
            self._session.want_name()  # nobody may have been there to tell it
            self._session.doubt_name()
            self._say(event.OVER, "the endpoint answers again")

    def _say(self, reason: str, message: str) -> None:
        self.troubles.append(event.Trouble(reason=reason, message=message))

    def _ask_next(self, attempt: session.Attempt, *, changes: Sequence[PendingChange]) -> None:
        """Set the time of the next question: at the pace of polls, counted from the last one.

        So a wait that ran its course is followed by the next at once. A document that changed while
        the server waits is followed at once too; one that has only a new number is not: its server
        may number each answer.
        """
        soon = self._looks_again or (changes and self._waits is True)
        gap = LEAST_GAP_SECONDS if soon else self._session.pace.poll(attempt.chance)
        self._next_at = max(attempt.at.monotonic, self._asked_at + gap)

    def _read(self, documents: Sequence[ReadDocument]) -> list[PendingChange]:
        changes = list(self._changes(documents))
        self._pending.extend(changes)
        return changes

    def _changes(self, documents: Sequence[ReadDocument]) -> Iterator[PendingChange]:
        """Yield the changes in one or two documents in a row.

        An event is gone once two documents in a row do not list it: one empty document may come
        from a server or a proxy that is just starting, and a handler would go back to work in the
        middle of an event. Ended events come first: a machine is back in service before it is
        drained for the next event.
        """
        newest, name = documents[-1].events, self._session.name
        gone = set()
        for key, known in self._known.items():
            names = known.event.resources
            absent = [known.missing, *(each.lacks(key, names) for each in documents)]
            left = known.told and self._filter.left(known.event, newest.get(key), name)
            if left or any(map(operator.and_, absent, absent[1:])):
                gone.add(key)
                yield PendingChange(key, "gone" if known.told else "", None)
            elif all(absent[1:]):
                yield PendingChange(key, "", msgspec.structs.replace(known, missing=True))
        for document in documents:
            for key, listed in document.events.items():
                if document is documents[-1] or key not in newest:
                    before = None if key in gone else self._known.get(key)
                    missing = documents[-1].lacks(key, listed.resources)
                    yield from self._changes_of(before, listed, document, missing=missing)

    def _changes_of(
        self, known: KnownEvent | None, listed: Listed, document: ReadDocument, *, missing: bool
    ) -> Iterator[PendingChange]:
        key = listed.key
        seen = session.seen(listed, self._session.name, document.at, document.sent)
        if known is not None:
            before = known.event
            if key in self._resumed and seen.starts_by is not None:
                self._resumed.remove(key)
                before = msgspec.structs.replace(before, starts_by=None)
            seen = merged(before, listed, seen, by_server=document.sent is not None)
        is_repeated = known is not None and not known.handled and not seen.started
        if known is None or not known.told or is_repeated:
            told = is_repeated or self._filter.wants(seen)
            known = KnownEvent(seen, told=told, started=False, missing=missing)
            yield PendingChange(key, "appeared" if told else "", known)
            if not told:
                return
        started = known.started or seen.started
        after = KnownEvent(seen, told=True, started=started, missing=missing)
        if started != known.started:
            yield PendingChange(key, "started", after)
        elif after != known:
            is_news = msgspec.structs.replace(seen, starts_by=known.event.starts_by) != known.event
            yield PendingChange(key, "updated" if is_news else "", after)


def merged(
    before: event.Event, listed: Listed, seen: event.Event, *, by_server: bool
) -> event.Event:
    """Return an event as seen now, with the parts that this answer leaves out as before.

    An answer may be of an older version than the one before, may write the id in another case and
    put `_` before the names; none of this is news. `by_server` is True if it had the server's Date.
    """
    same_names = list(map(_bare, seen.resources)) == list(map(_bare, before.resources))
    left_out = {
        "event_id": True,
        "status": not seen.status,
        "event_type": not seen.event_type,
        "resources": same_names or not seen.resources,
        "not_before": seen.not_before is None and not seen.started,
        "description": listed.description is None,
        "source": listed.source is None,
        "duration_seconds": listed.duration_seconds is None,
        "concerns_me": seen.concerns_me is None or not seen.resources,
    }
    kept = {name: getattr(before, name) for name, is_left_out in left_out.items() if is_left_out}
    if kept.get("not_before", seen.not_before) == before.not_before:
        kept["starts_by"] = _soonest(before.starts_by, seen.starts_by, by_server=by_server)
    return msgspec.structs.replace(seen, **kept)


def _soonest(before: float | None, now: float | None, *, by_server: bool) -> float | None:
    # The monotonic clock of a machine that sleeps or is paused stands still, so its notice is
    # shorter than was reckoned. It is never longer, and a clock of ours that was set says nothing.
    if before is None or now is None:
        return before if now is None else now  # only one of them says
    slept = by_server and now < before - session.CLOCKS_AGREE_SECONDS
    return now if slept else before


def _bare(name: str) -> str:
    return ascii_lower(name.removeprefix(codec.PREVIEW_PREFIX))


def applied_seconds(reply: Reply) -> float:
    """Return the wait that a server offers (RFC 7240, section 3), in seconds; 0 for none."""
    match = re.search(_WAIT, session.header(reply, b"preference-applied") or b"")
    return float(match[1]) if match else 0.0


_WAIT: Final = rb"(?i)\bwait *= *\"?(\d{1,6})\b"


def write_state(known: Mapping[str, KnownEvent]) -> str:
    """Return events as JSON, without data that only this process or its last document has."""
    lasting = {
        key: msgspec.structs.replace(
            each, event=msgspec.structs.replace(each.event, starts_by=None), missing=False
        )
        for key, each in known.items()
    }
    # A library that freezes time for tests has a datetime of its own.
    state = msgspec.json.encode(WatchState(known=lasting), enc_hook=datetime.isoformat)
    return state.decode()


def read_state(written: str, at: session.ClockReading) -> dict[str, KnownEvent]:
    """Read the output of `write_state`, of this process or of another; Misuse if it is invalid."""
    try:
        state = msgspec.json.decode(written, type=WatchState)
    except (ValueError, RecursionError) as error:  # msgspec's own errors are ValueErrors
        raise _invalid(str(error)) from error
    if state.format != FORMAT:
        raise _invalid(f"its format is {state.format}, and this release reads {FORMAT}")

    def found(seen: event.Event) -> event.Event:
        return msgspec.structs.replace(
            seen,
            status=codec.known_word(EventStatus, seen.status),  # JSON has the words as mere text
            event_type=codec.known_word(EventType, seen.event_type),
            source=seen.source and codec.known_word(EventSource, seen.source),
            starts_by=session.starts_by(seen.not_before, at),
        )

    return {
        key: msgspec.structs.replace(known, event=found(known.event))
        for key, known in state.known.items()
    }


def _invalid(why: str) -> Misuse:
    return Misuse(
        f"the file of since= holds no state of a watch ({why}): name another one, or delete it and "
        "undo by hand what an earlier process drained"
    )
