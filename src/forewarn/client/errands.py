"""What is asked until it is had: a document, an approval, this machine's name.

Each errand is a generator: it yields what to do (an Ask, or a Pause) and gets a Turn back, with
what came of it and the time. So the two shells carry out the same errands, and no errand holds a
socket or reads a clock. It returns what was wanted, or raises what the caller catches.
"""

from collections.abc import Generator, Sequence
from typing import Final, TypeAlias, TypeVar

import msgspec

from forewarn.client import answers, event
from forewarn.client.answers import Failure
from forewarn.client.errors import Misuse
from forewarn.client.pace import Moment
from forewarn.client.terms import Ask, Pause, Terms, Turn
from forewarn.protocol import codec, refusals, text
from forewarn.protocol.message import Reply
from forewarn.protocol.tolerant import Listing

TRIES: Final = 4
"""Failures in a row after which a question that is asked once is given up."""


LEAST_ANSWER_SECONDS: Final = 0.1
"""What an answer is given however little time is left: one try is made in any case."""

LOOK_AGAIN_SECONDS: Final = 0.05
"""Between a document that does not list the event and the one that confirms its end."""

T = TypeVar("T")
Errand: TypeAlias = Generator[Ask | Pause, Turn, T]


def document(terms: Terms) -> Errand[event.Document]:
    """Ask for the document, and for this machine's name where it is not known.

    Raises:
        Unreachable, BadAnswer, Refused: After `TRIES` failures, or where trying again is in vain.
    """
    listing, turn = yield from _listing(terms)
    assert isinstance(turn.outcome, Reply)  # a listing was read from it
    sent = answers.server_time(turn.outcome)
    yield from _name(terms, turn.moment)
    seen = (answers.seen(each, terms.name, turn.moment, sent) for each in listing.events)
    return event.Document(incarnation=listing.incarnation, events=tuple(seen))


def _listing(terms: Terms) -> Errand[tuple[Listing, Turn]]:
    failures = 0
    while True:
        turn = yield terms.question()
        outcome = _read(terms, turn.outcome)
        if isinstance(outcome, Listing):
            return outcome, turn
        if terms.asks_anew(outcome):
            continue
        failures += 1
        if failures >= TRIES or outcome.status in answers.REFUSALS:
            raise outcome.error()
        yield _pause(terms, failures, outcome, turn.chance)


def _read(terms: Terms, outcome: Reply | Failure | None) -> Listing | Failure:
    assert outcome is not None  # something was asked
    found = answers.listing_of(outcome, terms.endpoint) if isinstance(outcome, Reply) else outcome
    if isinstance(found, Listing):
        terms.accepted()
    return found


def _pause(terms: Terms, failures: int, failure: Failure, chance: float) -> Pause:
    return Pause(terms.pace.backoff(failures, chance, failure.retry_after_seconds))


def _name(terms: Terms, moment: Moment) -> Errand[None]:
    """Learn this machine's name, if it can be had."""
    failures = 0
    while terms.wants_name(moment):
        turn = yield terms.name_question()
        moment = turn.moment
        assert turn.outcome is not None
        outcome = turn.outcome
        found = answers.name_in(outcome, terms.endpoint) if isinstance(outcome, Reply) else outcome
        if isinstance(found, str):
            terms.named(found)
        elif not terms.instance_stepped_down(found) and terms.no_name(found, moment):
            failures += 1
            yield _pause(terms, failures, found, turn.chance)


def machine(terms: Terms) -> Errand[event.Machine]:
    """Ask what this machine is called.

    Raises:
        Unreachable, BadAnswer, Refused: As for a document.
    """
    failures = 0
    while True:
        turn = yield terms.machine_question()
        assert turn.outcome is not None
        found = turn.outcome
        if isinstance(found, Reply):
            told = answers.machine_in(found, terms.endpoint)
            if isinstance(told, event.Machine):
                return told
            found = told
        if terms.instance_stepped_down(found):
            continue
        failures += 1
        if failures >= TRIES or found.status in answers.REFUSALS:
            raise found.error()
        yield _pause(terms, failures, found, turn.chance)


def ids_of(events: Sequence[event.Event | str]) -> tuple[str, ...]:
    """Return the ids to approve, each once.

    Raises:
        Misuse: There is none, or too many for one request, or something is neither event nor id.
    """
    ids: dict[str, str] = {}
    for each in events:
        event_id = each.event_id if isinstance(each, event.Event) else each
        if not event_id or not isinstance(event_id, str):
            message = f"{each!r} is neither an event nor an EventId"
            raise Misuse(message)
        ids.setdefault(text.upper(event_id), event_id)
    if not 0 < len(ids) <= refusals.MAX_START_REQUESTS:
        message = f"approve 1 to {refusals.MAX_START_REQUESTS} events at once, not {len(ids)}"
        raise Misuse(message)
    return tuple(ids.values())


def approval(
    terms: Terms, events: Sequence[event.Event | str], within_seconds: float | None, moment: Moment
) -> Errand[None]:
    """Approve events, until the server has said 200 (protocol.md section 5).

    An approval counts once however often it is sent, so one whose answer was lost is sent again.
    Before that the document is looked at: an event that is over needs no approval any more.

    Args:
        terms: What is known of the server.
        events: Events or their ids.
        within_seconds: How long it is tried at the most; None for the pace's.
        moment: Now.

    Raises:
        Misuse: There is nothing to approve, or too much.
        Refused: The server takes no such approval.
        Unreachable, BadAnswer: No 200 came while it could matter.
    """
    ids = ids_of(events)
    until = moment.monotonic + (
        terms.pace.approve_seconds if within_seconds is None else within_seconds
    )
    last: Failure | None = None
    failures = 0
    posting = terms.settled
    missing = False
    while True:
        ask = terms.approval(codec.encode_start_requests(ids)) if posting else terms.question()
        turn = yield _within(ask, until - moment.monotonic)
        moment = turn.moment
        found = _approved(terms, turn.outcome) if posting else _read(terms, turn.outcome)
        if found is None:
            return
        if isinstance(found, Listing):
            posting = True
            if last is not None:
                listed = {each.key for each in found.events}
                left = tuple(each for each in ids if text.upper(each) in listed)
                if not left and missing:
                    raise last.error("the event is over before its approval was confirmed: ")
                missing = not left
                if missing:  # a second look confirms the end
                    moment = (yield Pause(LOOK_AGAIN_SECONDS)).moment
                    posting = False
                ids = left or ids
            continue
        blames_version = not posting or bool(found.newest_versions)
        posting = False
        if blames_version and terms.asks_anew(found):
            continue
        if found.status in answers.REFUSALS:
            raise found.error()
        last = found
        failures += 1
        pause = _pause(terms, failures, found, turn.chance)
        if moment.monotonic + pause.seconds >= until:
            raise found.error("the approval was not confirmed in its time: ")
        moment = (yield pause).moment


def _approved(terms: Terms, outcome: Reply | Failure | None) -> Failure | None:
    """Return None where the approval is confirmed, else why it is not."""
    assert outcome is not None  # something was asked
    if isinstance(outcome, Failure):
        return outcome
    if outcome.status != 200:
        return answers.failure_of(outcome, terms.endpoint)
    if outcome.body.lstrip().startswith(b"<"):  # a server's own confirmation has no body
        return answers.no_document("the answer is HTML or XML, as a proxy's own page is")
    return None


def _within(ask: Ask, seconds: float) -> Ask:
    """Return the question with no more time for its answer than is left."""
    least = min(ask.answer_seconds, max(seconds, LEAST_ANSWER_SECONDS))
    return msgspec.structs.replace(ask, answer_seconds=least)
