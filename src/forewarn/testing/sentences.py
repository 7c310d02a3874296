"""The sentences of a scenario, each by its subject: words in, a statement out."""

from datetime import timedelta
from typing import Final

from forewarn.maintenance.alerts import CLOCK, AlertKind
from forewarn.maintenance.model import HoldKind, RollingState, StartCause
from forewarn.protocol import versions
from forewarn.testing import statements
from forewarn.testing.statements import Shown, Statement
from forewarn.testing.words import ScriptError, Words
from forewarn.vocabulary import EventSource, EventStatus, EventType

SUBJECTS: Final = (
    "an operator ('operator schedules ...'), the connector, the server, the clock, 'expect', "
    "a type that strikes ('Reboot strikes web-0'), or a machine that approves or asks"
)


VERBS: Final = (
    *("schedules", "cancels", "approves", "notes", "resumes", "postpones", "holds", "releases"),
    *("removes", "applies", "trusts"),
)
"""What an operator does."""


def read(words: Words) -> Statement | None:
    """Return a sentence's statement; None for a fleet that is applied, whose block follows.

    Raises:
        ScriptError: It is none; the message says what was expected where.
    """
    if words.take("operator"):
        return _of_operator(words)
    if words.take("connector"):
        return _of_connector(words)
    if words.take("server"):
        return _of_server(words)
    if words.take("clock"):
        words.need("jumps")
        return statements.Jumps(words.signed_span())
    if words.take("expect"):
        return _expectation(words)
    if words.is_one_of(EventType):
        return _strikes(words)
    machine = words.name(SUBJECTS)
    if words.take("asks"):
        return statements.Asks(machine)
    if not words.take("approves"):
        raise words.error(
            f"'approves' or 'asks' after a machine; else, for {machine!r}, {SUBJECTS}"
        )
    operations: list[str] = []
    while words.at_operation():
        operations.append(words.operation())
        words.take(",")
    return statements.Approves(machine, tuple(operations))


def _strikes(words: Words) -> Statement:
    event_type = words.one_of(EventType, "a type")
    words.need("strikes")
    machines = words.names("the machines that it strikes")
    return statements.Schedules(
        by="platform", event_type=event_type, machines=machines, no_notice=True
    )


def _of_operator(words: Words) -> Statement | None:
    known = f"one of {', '.join(VERBS)}"
    by = "operator" if words.is_one_of(VERBS) else words.name(f"an operator's name, or {known}")
    if not words.is_one_of(VERBS):
        raise words.error(known)
    verb = words.word(known)
    match verb:
        case "schedules":
            return _schedules(words, by)
        case "holds" | "releases":
            return _holds(words, by, release=verb == "releases")
        case "removes":
            return statements.Removes(words.names("the machines to remove"))
        case "applies":
            words.need("fleet")
            return None
        case "trusts":
            words.need("the", "clock")
            return statements.Trusts()
        case "postpones":
            reference = words.reference()
            words.need("to")
            to = words.span("a time from the beginning, such as 1h30m")
            return statements.OperatorSays(by=by, verb=verb, reference=reference, to=to)
        case "resumes":
            number = str(words.number("a maintenance, such as 1"))
            return statements.OperatorSays(by=by, verb=verb, reference=number)
        case _:
            reference = words.reference()
            reason = words.quoted()
            return statements.OperatorSays(by=by, verb=verb, reference=reference, reason=reason)


def _schedules(words: Words, by: str) -> Statement:
    event_type = words.one_of(EventType, "a type")
    words.need("of")
    scope = host = ""
    machines: tuple[str, ...] = ()
    if words.take("scope"):
        scope = words.name("the scope's name")
    elif words.take("host"):
        host = words.name("the host's name")
    else:
        machines = words.names("'scope NAME', 'host NAME', or machines")
    source, without_notice = EventSource.PLATFORM, False
    not_before: timedelta | None = None
    duration = -1
    while words.more and not words.is_one_of(["refused"]):
        if words.take("for", "a", "user"):
            source = EventSource.USER
        elif words.take("not", "before"):
            not_before = words.span("a time from the beginning, such as 1h30m")
        elif words.take("lasting"):
            duration = int(words.span("a span, such as 90s").total_seconds())
        elif words.take("without", "notice"):
            without_notice = True
        else:
            raise words.error(
                "'for a user', 'not before TIME', 'lasting SPAN', 'without notice', "
                "'refused as REASON', or the end of the line"
            )
    return statements.Schedules(
        by=by, event_type=event_type, machines=machines, scope=scope, host=host, source=source,
        not_before=not_before, duration_seconds=duration, without_notice=without_notice,
    )  # fmt: skip


def _holds(words: Words, by: str, *, release: bool) -> Statement:
    kind = words.one_of(HoldKind, "what it concerns")
    name = "" if kind is HoldKind.EVERYTHING else words.name(f"the {kind}'s name")
    return statements.Holds(by=by, kind=kind, name=name, reason=words.quoted(), release=release)


def _of_connector(words: Words) -> Statement:
    failed = words.take("fails")
    if not failed:
        words.need("finishes")
    operation = words.operation()
    message = words.quoted()
    attempt = None
    if words.take("as", "attempt"):
        attempt = words.number("the attempt's number")
    return statements.Ends(
        operation=operation, succeeded=not failed, message=message, attempt=attempt
    )


def _of_server(words: Words) -> Statement:
    if words.take("starts"):
        return statements.Starts()
    words.need("is", "killed")
    return statements.Killed(in_commit=words.take("in", "the", "next", "commit"))


def _expectation(words: Words) -> Statement:
    if words.take("incarnation"):
        words.need("of")
        scope = words.name("the scope's name")
        words.need("is")
        return statements.Incarnation(scope, words.number("the incarnation"))
    if words.take("walk"):
        words.need("of")
        number = words.number("a maintenance, such as 1")
        words.need("is")
        return statements.Walks(number, words.one_of(RollingState, "the state of its walks"))
    if words.take("attention"):
        return statements.Attention(_attention(words))
    if words.take("no"):
        if words.take("attention"):
            return statements.Attention(())
        if words.take("machine"):
            return statements.Fleets(words.name("the machine's name"), None)
        words.need("operation")
        return statements.Is(operation=words.operation(), status=None)
    if words.at_operation():
        return _is(words)
    machine = words.name(
        "a machine, an operation such as 1.1, 'incarnation of', 'walk of', 'attention' or 'no'"
    )
    if words.take("is", "on", "host"):
        return statements.Fleets(machine, words.name("the host's name"))
    version = versions.NEWEST.name
    if words.take("by"):
        version = words.one_of_these([v.name for v in versions.VERSIONS], "an api-version")
    words.need("sees")
    if words.take("nothing"):
        return statements.Sees(machine=machine, version=version, events=())
    events = [_shown(words)]
    while words.take("and"):
        events.append(_shown(words))
    return statements.Sees(machine=machine, version=version, events=tuple(events))


def _shown(words: Words) -> Shown:
    event_type = words.one_of(EventType, "'nothing', or a type")
    status = words.one_of(EventStatus, "a status")
    if not status.visible:
        raise ScriptError(f"{words.where}: no guest ever sees the status {status}: an event that "
                          "is over is gone; expected Scheduled or Started")  # fmt: skip
    words.need("of")
    machines = words.names("the machines that the event names")
    not_before = words.span("a time from the beginning") if words.take("at") else None
    return Shown(event_type=event_type, status=status, machines=machines, not_before=not_before)


def _is(words: Words) -> Statement:
    operation = words.operation()
    words.need("is")
    status = words.one_of(EventStatus, "a status")
    because: StartCause | None = None
    waits_for, held = "", False
    since: timedelta | None = None
    not_before: timedelta | None = None
    while words.more:
        if words.take("because"):
            because = words.one_of(StartCause, "why it started")
        elif words.take("waiting", "for"):
            waits_for = words.operation()
        elif words.take("held"):
            held = True
        elif words.take("since"):
            since = words.span("when it started, from the beginning")
        elif words.take("not", "before"):
            not_before = words.span("its NotBefore, from the beginning")
        else:
            raise words.error(
                "'because CAUSE', 'waiting for OPERATION', 'held', 'since TIME', "
                "'not before TIME', or the end of the line"
            )
    return statements.Is(
        operation=operation, status=status, because=because, waits_for=waits_for, held=held,
        since=since, not_before=not_before,
    )  # fmt: skip


def _attention(words: Words) -> tuple[tuple[AlertKind, str], ...]:
    items: list[tuple[AlertKind, str]] = []
    while not items or words.take(","):
        kind = words.one_of(AlertKind, "why an operator should look")
        if kind is AlertKind.HELD:
            covers = words.one_of(HoldKind, "what is held")
            name = "" if covers is HoldKind.EVERYTHING else words.name("the name of what is held")
            items.append((kind, f"{covers} {name}".rstrip()))
        elif kind is AlertKind.DOUBTED:
            words.need(CLOCK)
            items.append((kind, CLOCK))
        else:
            items.append((kind, words.reference()))
    return tuple(items)
