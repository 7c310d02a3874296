"""The watch's decider: answers, failures and time in; changes and the next question out.

    step     what to do now: ask this, or nothing for so long
    heard    what came of it
    take     the next change, once it is told
    tell     the next word about trouble

It holds no socket, reads no clock and draws no chance: the shells `sync` and `aio` do, and are
thin. What it promises for any sequence of answers and failures: an event that was seen appears,
starts at most once, and is gone after two documents in a row did not list it; if it is listed again
after that, it appears again. A watch that is cut anywhere and resumed from its state tells what it
would have told.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final

import msgspec

from forewarn.client import answers, event, state
from forewarn.client.answers import Failure
from forewarn.client.errors import Misuse
from forewarn.client.pace import Moment
from forewarn.client.state import Known, Step
from forewarn.client.terms import Ask, Pause, Terms, Turn
from forewarn.protocol import codec, text
from forewarn.protocol.message import Reply
from forewarn.protocol.tolerant import Listed, Listing

LEAST_GAP_SECONDS: Final = 0.05
"""Between two questions, however often the document changes: no handler is told more than twenty
documents a second, and no server is asked for them."""

EARLY: Final = 0.5
"""A waiting answer that says nothing new before this part of the wait is over was none."""

TRY_WAITING_SECONDS: Final = 60.0
"""How long a server that did not wait is polled before it is asked to wait again: it may have had
as many who wait as it takes."""

SECOND_LOOK_SECONDS: Final = 2.0
"""For the answer that confirms an end: what the document before shows is held back meanwhile."""

NAME_SECONDS: Final = 5.0
"""How long this machine's name is asked for at a time, tries and all: meanwhile nobody looks for
events, and the shortest notice is 30 s."""

NO_NAME: Final = "no-name"
"""The reason of the trouble that nobody can tell which events concern this machine."""


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """Which events a watch is to tell of."""

    types: frozenset[str] | None = None
    """In lower case; None for every type."""
    mine: bool = False
    """Whether events are left out that are known not to concern this machine. Where its name is not
    known they are told: a notice too many is better than one too few."""

    def wants(self, seen: event.Event) -> bool:
        """Tell whether an event is to be told of."""
        if self.mine and seen.concerns_me is False:
            return False
        return self.types is None or text.lower(seen.event_type) in self.types


def wishes(types: Iterable[str] | None, *, mine: bool) -> Wishes:
    """Return what a caller wishes for.

    Raises:
        Misuse: `types` is a text, or has none.
    """
    if types is None:
        return Wishes(mine=mine)
    wanted = () if isinstance(types, str) else tuple(types)
    if not wanted or not all(isinstance(each, str) for each in wanted):
        message = f"types={types!r}: give some event types, such as ['Reboot', 'Freeze']"
        raise Misuse(message)
    return Wishes(types=frozenset(text.lower(each) for each in wanted), mine=mine)


class Look(msgspec.Struct, frozen=True):
    """A document as it was read."""

    events: dict[str, Listed]
    moment: Moment
    sent: datetime | None
    """The server's Date."""


class Watcher:
    """Decides what a watch asks, when, and what it tells.

    Args:
        terms: What the client knows of its server; it is shared, and kept up to date.
        wanted: Which events are told of.
        since: The state to go on from; None to begin.
        moment: Now.

    Raises:
        Misuse: `since` is no state.
    """

    def __init__(self, terms: Terms, wanted: Wishes, since: str | None, moment: Moment) -> None:
        self.looks = 0
        """How many good answers came: documents, and the word that nothing is new."""
        self.answered_at: float | None = None
        """When the last of them came, by the monotonic clock."""
        self._terms = terms
        self._wishes = wanted
        self._state = state.State() if since is None else state.read(since, moment)
        self._troubles: deque[event.Trouble] = deque()
        self._reason = event.OVER
        self._held_back: Look | None = None
        """A document that lists less than the one before, until a second look confirms it."""
        self._incarnation: int | None = None
        self._shown: tuple[event.Event, ...] | None = None
        self._told_no_name = False
        self._failures = 0
        self._next_at = moment.monotonic
        self._asked_at = moment.monotonic
        self._asked_name = False
        self._name_until: float | None = None  # None: the name is not being asked for
        self._answered = False
        self._tag: bytes | None = None
        self._apart = _apart(moment)
        self._try_waiting_at = moment.monotonic
        self._waits: bool | None = None  # None: not known, or to be found out anew

    @property
    def since(self) -> str:
        """The state after the change that was taken last, as JSON."""
        return state.write(self._state)

    @property
    def listed(self) -> tuple[event.Event, ...] | None:
        """What is known to be listed, told or not; None before the first document."""
        if not self._answered:
            return None
        return tuple(known.event for known in self._state.known.values())

    def take(self) -> event.Change | None:
        """Return the next change, which counts as told from now on; None if there is none."""
        while (taken := self._state.take()) is not None:
            change = _change(*taken)
            if change is not None:
                return change
        return None

    def take_document(self) -> event.Document | None:
        """Take every change; return the document if its events are new since the last call."""
        while self._state.take() is not None:
            pass
        listed = self.listed
        if listed is None or listed == self._shown:
            return None
        self._shown = listed
        return event.Document(incarnation=self._incarnation, events=listed)

    def tell(self) -> event.Trouble | None:
        """Return the next word about trouble; None if there is none."""
        return self._troubles.popleft() if self._troubles else None

    def step(self, moment: Moment) -> Ask | Pause:
        """Return what to do now, once every change is taken."""
        assert not self._state.steps  # what comes next is judged by what was told
        if moment.monotonic < self._next_at:
            return Pause(self._next_at - moment.monotonic)
        self._asked_name = self._held_back is None and self._terms.wants_name(moment)
        if self._asked_name:
            return self._name_question(moment)
        self._asked_at = moment.monotonic
        if self._held_back is not None:
            return _within(self._terms.question(), SECOND_LOOK_SECONDS)
        polls = self._waits is False and moment.monotonic < self._try_waiting_at
        return self._terms.question(None if polls else self._tag)

    def heard(self, turn: Turn) -> None:
        """Take note of what was done: of the answer, the failure, or that a pause is over."""
        if turn.outcome is not None and self._asked_name:
            self._heard_name(turn.outcome, turn)
        elif turn.outcome is not None:
            self._heard_events(turn.outcome, turn)
        apart = _apart(turn.moment)
        if abs(apart - self._apart) > answers.CLOCKS_AGREE_SECONDS:
            # The machine may have slept, and its notice is shorter than it seems: only a whole
            # document that is read from now on tells by how much.
            self._apart, self._tag = apart, None

    def _heard_events(self, outcome: Reply | Failure, turn: Turn) -> None:
        found: Reply | Listing | Failure = outcome
        if isinstance(found, Reply):
            if found.status == 304 and turn.held:
                self._nothing_new(found, turn)
                return
            found = answers.listing_of(found, self._terms.endpoint)
        if isinstance(found, Failure):
            self._failed(found, turn)
        else:
            assert isinstance(outcome, Reply)  # the listing was read from it
            self._document(found, outcome, turn)

    def _name_question(self, moment: Moment) -> Ask:
        ask = self._terms.name_question()
        if self._name_until is None:
            self._name_until = moment.monotonic + NAME_SECONDS
        seconds = max(self._name_until - moment.monotonic, LEAST_GAP_SECONDS)
        return _within(ask, seconds)

    def _heard_name(self, outcome: Reply | Failure, turn: Turn) -> None:
        named: Reply | str | Failure = outcome
        if isinstance(named, Reply):
            named = answers.name_in(named, self._terms.endpoint)
        if isinstance(named, str):
            self._terms.named(named)
            self._failures, self._tag = 0, None  # whom the document concerns is to be seen anew
            self._name_until = None
            return
        if self._terms.moves_on(named) or self._terms.instance_stepped_down(named):
            return
        if self._terms.no_name(named, turn.moment):
            self._back_off(named, turn)
            if self._name_until is None or self._next_at < self._name_until:
                return
        self._terms.leaves_name(turn.moment)
        self._next_at, self._name_until = self._asked_at + LEAST_GAP_SECONDS, None
        if not self._told_no_name:
            self._told_no_name = True
            self._say(NO_NAME, f"this machine's name is not known: {named.message}")

    def _nothing_new(self, reply: Reply, turn: Turn) -> None:
        self._fine(turn.moment)
        waited = turn.moment.monotonic - self._asked_at
        waits = waited >= EARLY * applied_seconds(reply, float("inf"))
        self._found_waiting(turn, waits=waits)
        self._ask_next(turn, changed=False)

    def _document(self, listing: Listing, reply: Reply, turn: Turn) -> None:
        self._terms.accepted()
        self._answered = True
        self._fine(turn.moment)
        tag = answers.header(reply, b"etag")
        if tag is None and listing.incarnation is not None:
            tag = b"%d" % listing.incarnation
        if turn.held and applied_seconds(reply, 0.0) > 0:
            self._found_waiting(turn, waits=True)
        elif turn.held and tag == self._tag:
            self._found_waiting(turn, waits=False)
        self._tag = tag
        self._incarnation = listing.incarnation
        events = {each.key: each for each in listing.events}
        look = Look(events, turn.moment, answers.server_time(reply))
        before, self._held_back = self._held_back, None
        if before is None and any(
            key not in events and not known.missing for key, known in self._state.known.items()
        ):
            self._held_back, self._tag = look, None
            self._next_at = max(turn.moment.monotonic, self._asked_at + LEAST_GAP_SECONDS)
            return
        steps = self._read([look] if before is None else [before, look])
        if any(step.after is not None and step.after.missing for step in steps):
            self._tag = None  # the next document is to confirm that it is gone
        self._ask_next(turn, changed=bool(steps))
        is_new = any(step.key not in self._state.known for step in steps)
        if self._terms.name is None and is_new:  # whose it is may be known by now
            self._terms.doubts_no_name()
            self._next_at = turn.moment.monotonic

    def _found_waiting(self, turn: Turn, *, waits: bool) -> None:
        self._waits = waits
        self._try_waiting_at = turn.moment.monotonic + TRY_WAITING_SECONDS

    def _failed(self, failure: Failure, turn: Turn) -> None:
        self._tag = self._waits = None
        if self._terms.asks_anew(failure):
            self._next_at = turn.moment.monotonic
            return
        if failure.reason != self._reason:
            self._reason = failure.reason
            self._say(failure.reason, failure.message)
        if self._held_back is not None:  # what is new must not wait until answers come again
            self._read([self._held_back])
            self._held_back = None
        self._back_off(failure, turn)

    def _back_off(self, failure: Failure, turn: Turn) -> None:
        self._failures += 1
        pause = self._terms.pace.backoff(self._failures, turn.chance, failure.retry_after_seconds)
        self._next_at = turn.moment.monotonic + pause

    def _fine(self, moment: Moment) -> None:
        self.looks += 1
        self.answered_at = moment.monotonic
        self._failures = 0
        if self._reason != event.OVER:
            self._reason = event.OVER
            self._terms.doubts_no_name()  # it may have been asked of nobody
            self._say(event.OVER, "answers come again")

    def _say(self, reason: str, message: str) -> None:
        self._troubles.append(event.Trouble(reason=reason, message=message))

    def _ask_next(self, turn: Turn, *, changed: bool) -> None:
        """Set the time of the next question: at the pace of polls, counted from the last one.

        So a wait that ran its course is followed by the next at once. A document that changed while
        the server waits is followed at once too; one that is new in its number alone is not: its
        server may number each answer anew.
        """
        soon = changed and self._waits is True
        gap = LEAST_GAP_SECONDS if soon else self._terms.pace.poll(turn.chance)
        self._next_at = max(turn.moment.monotonic, self._asked_at + gap)

    def _read(self, looks: Sequence[Look]) -> list[Step]:
        steps = list(self._steps(looks))
        self._state.steps.extend(steps)
        return steps

    def _steps(self, looks: Sequence[Look]) -> Iterator[Step]:
        """Give what is new in one or two documents in a row.

        An event is gone once two documents in a row do not list it: one empty document may come
        from a server or a proxy that is just starting, and a handler would go back to work in the
        middle of an event. What is gone comes first: a machine is back in service before it is
        drained for the next event.
        """
        newest = looks[-1].events
        for key, known in self._state.known.items():
            absent = [known.missing, *(key not in look.events for look in looks)]
            if all(absent[-2:]):
                yield Step(key, "gone" if known.told else "", None)
            elif all(absent[1:]):
                yield Step(key, "", msgspec.structs.replace(known, missing=True))
        for look in looks:
            for key, each in look.events.items():
                if look is looks[-1] or key not in newest:
                    yield from self._steps_of(key, each, look, missing=key not in newest)

    def _steps_of(self, key: str, listed: Listed, look: Look, *, missing: bool) -> Iterator[Step]:
        known = self._state.known.get(key)
        seen = answers.seen(listed, self._terms.name, look.moment, look.sent)
        if known is not None:
            seen = merged(known.event, listed, seen, by_server=look.sent is not None)
        if known is None or not known.told:
            if not self._wishes.wants(seen):
                yield Step(key, "", Known(seen, told=False, started=False, missing=missing))
                return
            known = Known(seen, told=True, started=False, missing=missing)
            yield Step(key, "appeared", known)
        if seen.started and not known.started:
            yield Step(key, "started", Known(seen, told=True, started=True, missing=missing))
        elif seen != known.event or missing != known.missing:
            is_news = msgspec.structs.replace(seen, starts_by=known.event.starts_by) != known.event
            known = Known(seen, told=True, started=known.started, missing=missing)
            yield Step(key, "updated" if is_news else "", known)


def _within(ask: Ask, seconds: float) -> Ask:
    """Return the question with no more time than this for its answer."""
    return msgspec.structs.replace(ask, answer_seconds=min(ask.answer_seconds, seconds))


def _apart(moment: Moment) -> float:
    """Return how far the wall clock and the monotonic one are apart, in seconds."""
    return moment.now.timestamp() - moment.monotonic


def merged(
    before: event.Event, listed: Listed, seen: event.Event, *, by_server: bool
) -> event.Event:
    """Return an event as it is seen now, with what this answer leaves out as it was before.

    An answer may be of an older version than the one before, may write the id in another case and
    put `_` before the names; none of this is news.

    Args:
        before: The event as it was known.
        listed: As the answer has it.
        seen: What the answer alone makes of it.
        by_server: Whether the server's clock was there to reckon by.
    """
    same_names = [_bare(name) for name in seen.resources] == [
        _bare(name) for name in before.resources
    ]
    resources = before.resources if same_names or not seen.resources else seen.resources
    forgotten = seen.not_before is None and not seen.started
    not_before = before.not_before if forgotten else seen.not_before
    concerns_me = seen.concerns_me
    if concerns_me is None or not seen.resources:
        concerns_me = before.concerns_me
    return msgspec.structs.replace(
        seen,
        event_id=before.event_id,
        status=seen.status or before.status,
        event_type=seen.event_type or before.event_type,
        resources=resources,
        not_before=not_before,
        description=before.description if listed.description is None else seen.description,
        source=before.source if listed.source is None else seen.source,
        duration_seconds=(
            before.duration_seconds if listed.duration_seconds is None else seen.duration_seconds
        ),
        concerns_me=concerns_me,
        starts_by=(
            _soonest(before.starts_by, seen.starts_by, by_server=by_server)
            if not_before == before.not_before
            else seen.starts_by
        ),
    )


def _soonest(before: float | None, now: float | None, *, by_server: bool) -> float | None:
    """Return when the same NotBefore is, by what was reckoned once and by what is reckoned now.

    The monotonic clock of a machine that sleeps or is paused stands still, so its notice is shorter
    than was reckoned. It is never longer, and a clock of ours that was set says nothing of it.
    """
    if before is None or now is None:
        return before  # this answer does not say
    slept = by_server and now < before - answers.CLOCKS_AGREE_SECONDS
    return now if slept else before


def _bare(name: str) -> str:
    return text.lower(name.removeprefix(codec.PREVIEW_PREFIX))


def applied_seconds(reply: Reply, otherwise: float) -> float:
    """Return how long a server says that it would wait (RFC 7240, section 3).

    Args:
        reply: Its answer.
        otherwise: What is returned where it does not say so.
    """
    match = re.search(_WAIT, answers.header(reply, b"preference-applied") or b"")
    return float(match[1]) if match else otherwise


_WAIT: Final = rb"(?i)\bwait *= *\"?(\d{1,6})\b"


def _change(step: Step, before: Known | None) -> event.Change | None:
    """Return what is told of a step; None for what changes without a word."""
    if step.after is None:
        assert before is not None  # a step ends what is known
        return event.Gone(before.event) if step.kind else None
    match step.kind:
        case "appeared":
            return event.Appeared(step.after.event)
        case "started":
            return event.Started(step.after.event)
        case "updated":
            assert before is not None  # only what is known is updated
            return event.Updated(step.after.event, before.event)
    return None
