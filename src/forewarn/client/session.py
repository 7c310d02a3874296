"""A client's knowledge of its server, the meaning of its answers, and the questions for one result.

`watch` decides that an event has appeared, or is over. The callers here ask through a function that
carries out a Question or a Pause: no I/O in here.

Threads may share a session. Nothing in it is locked: each decision about the address or the version
follows from the address and version of the failed question, so that two threads with the same
failure make the same step once.
"""

import functools
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final, NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec.structs import asdict

from forewarn.client import event
from forewarn.client.discovery import EndpointAddress
from forewarn.client.event import BadAnswer, ClientError, Misuse, RequestRefused, Unreachable
from forewarn.protocol import codec, refusals
from forewarn.protocol.codec import AgentReport, Listed, Listing
from forewarn.protocol.message import Reply, ascii_upper, shown
from forewarn.protocol.versions import NEWEST_VERSION, VERSIONS
from forewarn.vocabulary import AgentStatus

LEAST_SECONDS: Final = 0.001
"""The least of any time of a pace: the client never asks without a pause."""

MOST_SECONDS: Final = 86_400.0
"""The most of any time of a pace: a day."""

MAX_DOUBLINGS: Final = 30
"""Failures in a row after which the pause grows no further."""

INSTANCE_VERSIONS: Final = ("2019-03-11", "2017-08-01")
"""For the instance service: the first that shows the resource id, and one that all have."""

REFUSALS_UNTIL_DOUBT: Final = 3
"""Refusals in a row after which an accepted version is doubted: one may be a proxy's fault."""

NEWEST_TRIES: Final = 3
"""The further tries of the newest version, once an older one was taken after refusals that name no
versions: these may have passed, and an older version does not show every event."""

NAME_TRIES: Final = 3
"""Failures in a row after which the client asks for the name later: events go first."""

NAME_SECONDS: Final = 5.0
"""The longest time spent on the name at once: the client does not look for events meanwhile."""

NAME_PAUSE_SECONDS: Final = 60.0
"""The pause before the name is asked for again."""

NAME_HOLDS_SECONDS: Final = 10.0
"""The age of a learnt name before it is asked for again, however many events of others are listed.
"""

TRIES: Final = 4
"""Failures in a row after which a call gives up."""

LEAST_ANSWER_SECONDS: Final = 0.1
"""The least time for an answer: one try is made in any case."""

FOREWARN: Final = b"Forewarn/"
"""The mark of Forewarn in the Server header (protocol.md section 9)."""

NOT_AN_ENDPOINT: Final = frozenset(
    {"no-connection", "no-answer", "cut", "no-http", "no-document", "encoded", "too-large"}
    | {"status-302", "status-303", "status-307", "status-308", "status-404"}
)
"""Reasons of a failure after which the next address is tried, as long as none has answered."""

CLOCKS_AGREE_SECONDS: Final = 2.0
"""The server's Date is in whole seconds and has travelled: within this, our own clock is better."""

MAX_TEXT: Final = 500
"""Characters of a server's own words that an error repeats."""

REFUSALS: Final = frozenset({400, 401, 403})
"""Statuses after which the same question fails again."""

LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
"""Hosts where all requests look alike: there the path tells the machines apart."""

NAME_PREFIX: Final = "/vm"
"""The path before a machine's name in an address that asks as one (protocol.md section 10)."""

_VERSIONS: Final = tuple(version.name for version in VERSIONS)

T = TypeVar("T")


class ClockReading(msgspec.Struct, frozen=True):
    """A time by both clocks: the deciders' only time."""

    now: datetime
    """The wall clock's, aware."""
    monotonic: float
    """In seconds, from an origin of the machine's own."""


class FailedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why a question has no good answer."""

    reason: str
    """A word to compare: logged, and reported once for each change of it."""
    message: str
    """For people: the fault, and the likely cause."""
    answered: bool = False
    """True if anything came: a whole answer, or bytes that are not HTTP."""
    status: int | None = None
    """The answer's; None where none came, or the fault was elsewhere."""
    text: str = ""
    newest_versions: tuple[str, ...] = ()
    """The versions that a refusal names."""
    retry_after_seconds: float | None = None

    def error(self, prefix: str = "") -> ClientError:
        """Return it as an exception for the caller, its message after a prefix."""
        message = prefix + self.message
        if self.status in REFUSALS:
            return RequestRefused(message, status=self.status or 0, text=self.text)
        return BadAnswer(message) if self.answered else Unreachable(message)


_CAUSES: Final = {
    300: "a redirect, which the client never follows: a captive proxy answers for the endpoint",
    400: "",  # what it said is all that is known
    401: "the metadata service never asks for credentials: a proxy or another service answers at "
    "this address",
    403: "no machine is registered with the address that this request came from "
    "(a container or a proxy changes it)",
    404: "there are no scheduled events at this address, or not yet",
    407: "a proxy answers for the endpoint: connect to the metadata service directly",
    410: "the service is away for now, for example while the host is updated",
    429: "too many requests: several agents on one machine share its rate",
    500: "the server has an internal error",
}
_NO_NAME: Final = "this server does not tell machines their names: set the name yourself"


def failure_of(reply: Reply, endpoint: EndpointAddress, *, of_name: bool = False) -> FailedAnswer:
    """Return the failure that a response to a question for events, or for a name, reports."""
    said, newest = codec.decode_error(reply.body)
    said = said or reply.body.decode("utf-8", "replace").strip()
    said = " ".join(said[:MAX_TEXT].split())
    quoted = f" and said {said!r}" if said else ""
    cause = _cause(reply.status, endpoint, of_name=of_name)
    return FailedAnswer(
        reason=f"status-{reply.status}",
        message=f"the server answered {reply.status}{quoted}{cause and '; likely cause: '}{cause}",
        answered=True,
        status=reply.status,
        text=said,
        newest_versions=newest,
        retry_after_seconds=_retry_after(reply),
    )


def _cause(status: int, endpoint: EndpointAddress, *, of_name: bool) -> str:
    before, _, name = endpoint.prefix.rpartition("/")
    if status == 403 and before.lower().endswith(NAME_PREFIX):
        return f"no machine is registered with the name in the address, {shown(name)!r}"
    if status == 403 and not endpoint.prefix and endpoint.host in LOOPBACK:
        return f"{_CAUSES[403]}; on a loopback address, ask at {endpoint}{NAME_PREFIX}/NAME"
    if status == 404 and of_name:
        return _NO_NAME
    hundred = status // 100 * 100
    return _CAUSES.get(status) or _CAUSES.get(hundred, "this is not an answer of the protocol")


def _no_document(message: str) -> FailedAnswer:
    return FailedAnswer(reason="no-document", message=message, answered=True)


def _content(
    read: Callable[[bytes], T], reply: Reply, endpoint: EndpointAddress, *, of_name: bool = True
) -> T | FailedAnswer:
    if reply.status != 200:
        return failure_of(reply, endpoint, of_name=of_name)
    if (failure := _encoded(reply)) is not None:
        return failure
    try:
        return read(reply.body)
    except codec.Malformed as error:
        return _no_document(f"the answer {shown(str(error))}")


listing_of = functools.partial(_content, codec.decode_listing, of_name=False)
"""Return the document in a response, or the reason why there is none."""

name_in = functools.partial(_content, codec.decode_machine_name)
"""Return the machine's name in a response for its leaf, or the reason why there is none."""

machine_in = functools.partial(
    _content, lambda body: event.MachineIdentity(**codec.decode_compute(body))
)
"""Return the machine in a response for `compute`, or the reason why there is none."""


def confirmation_in(reply: Reply, endpoint: EndpointAddress) -> FailedAnswer | None:
    """Return None where a response confirms an approval, else the reason why it does not."""
    if reply.status != 200:
        return failure_of(reply, endpoint)
    if reply.body.lstrip().startswith(b"<"):  # a server's own confirmation has no body
        return _no_document("the answer is HTML or XML, like a proxy's own page")
    return _encoded(reply)


def _encoded(reply: Reply) -> FailedAnswer | None:
    coding = header(reply, b"content-encoding") or b"identity"
    if coding.lower() == b"identity":
        return None
    message = f"the answer has the coding {coding.decode('ascii', 'replace')!r}, unasked"
    return FailedAnswer(reason="encoded", message=message, answered=True)


def header(reply: Reply, name: bytes) -> bytes | None:
    """Return the first header of a name, which is given in lower case; None without one."""
    return next((value for each, value in reply.headers if each.lower() == name), None)


def server_time(reply: Reply, name: bytes = b"date") -> datetime | None:
    """Return the time in the server's Date, or in another header; None if it is unreadable."""
    value = header(reply, name)
    try:
        return None if value is None else codec.any_date(value.decode("ascii", "replace"))
    except ValueError:
        return None


def _retry_after(reply: Reply) -> float | None:
    # In seconds, or a date (RFC 9110, 10.2.3).
    value = header(reply, b"retry-after")
    if value is None:
        return None
    if value.isdigit():
        return float(value[:9])
    date, sent = server_time(reply, b"retry-after"), server_time(reply)
    return None if date is None or sent is None else max(0.0, (date - sent).total_seconds())


def seen(listed: Listed, name: str | None, at: ClockReading, sent: datetime | None) -> event.Event:
    """Return a listed event as a handler sees it, by this machine's name and the server's Date."""
    shown = {name: value for name, value in asdict(listed).items() if value is not None}
    return event.Event(
        **{"not_before": None, **shown},
        concerns_me=None if name is None else codec.concerns(listed.resources, name),
        starts_by=starts_by(listed.not_before, at, sent),
    )


def starts_by(
    not_before: datetime | None, at: ClockReading, sent: datetime | None = None
) -> float | None:
    """Return a NotBefore on the monotonic clock, by the server's Date where the clocks differ."""
    if not_before is None:
        return None
    now = at.now
    if sent is not None and abs((sent - now).total_seconds()) > CLOCKS_AGREE_SECONDS:
        now = sent
    return at.monotonic + (not_before - now).total_seconds()


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """A client's times, in seconds; the defaults are for a virtual machine on its own host."""

    first_answer_seconds: float = 150.0
    """For a client's first answer, and for `document()` as a whole: Azure holds the first answer
    back for up to two minutes, while it turns scheduled events on (protocol.md section 8)."""
    answer_seconds: float = 10.0
    """For every later answer; a waiting one has this much beyond its wait."""
    connect_seconds: float = 10.0
    """For a connection: the endpoint is one hop away, and some hosts drop early packets."""
    poll_seconds: float = 1.0
    """The pause between two questions to a server that does not wait: Azure recommends once a
    second, and a preemption has 30 s of notice."""
    wait_seconds: int = 25
    """The hold that a server which waits is asked for; it may cap this (section 10). Proxies on the
    way end a request themselves: OpenStack's for metadata after 32 s, nginx after 60 s."""
    backoff_seconds: float = 0.5
    """After a first failure; doubled with each further one."""
    longest_backoff_seconds: float = 10.0
    """The longest pause after failures: it leaves two thirds of the shortest notice."""
    longest_retry_after_seconds: float = 10.0
    """The longest pause that a server's Retry-After brings, for the same reason."""
    jitter: float = 0.1
    """The random part of a pause between polls, each way: 0 to 1."""
    approve_seconds: float = 900.0
    """The time for which an approval is tried: 15 minutes, the longest of the least notices."""

    def __post_init__(self) -> None:
        """Refuse times that would mean no pause, or no question at all."""
        for name in self.__struct_fields__:
            value = getattr(self, name)
            least, most = (0.0, 1.0) if name == "jitter" else (LEAST_SECONDS, MOST_SECONDS)
            if not least <= value <= most:
                raise Misuse(f"pace: {name} must be from {least:g} to {most:g}, not {value}")

    def poll(self, chance: float) -> float:
        """Return the seconds from one question to the next, for a chance from 0 to 1."""
        return self.poll_seconds * (1 + self.jitter * (2 * chance - 1))

    def backoff(self, failures: int, chance: float, retry_after: float | None = None) -> float:
        """Return the pause in seconds after failures in a row, the first being 1.

        Chance halves the pause at the most; `retry_after` is the server's own wish, in seconds.
        """
        doubled = self.backoff_seconds * 2.0 ** min(failures - 1, MAX_DOUBLINGS)
        pause = min(doubled, self.longest_backoff_seconds) * (0.5 + 0.5 * chance)
        if retry_after is None:
            return pause
        longest = self.longest_retry_after_seconds / (1 + self.jitter)
        return max(pause, min(max(retry_after, 0.0), longest) * (1 + self.jitter * chance))


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A question to ask now."""

    endpoint: EndpointAddress
    target: str
    """Path and query, from `/metadata` on."""
    version: str
    of_instance: bool = False
    """True if it is for the instance service, which has versions of its own."""
    answer_seconds: float
    """The time for the whole answer, from the question on."""
    method: bytes = b"GET"
    body: bytes = b""
    report: str = ""
    """The report of the machine's state, as the header's value; `""` for none."""
    held: tuple[tuple[bytes, bytes], ...] = ()
    """Headers for the connection of the last answer only: another may lead to another server, which
    has another document by the same number."""
    held_seconds: float = 0.0
    """The additional time for the answer with these."""

    def within(self, seconds: float) -> "Question":
        """Return it with no more time than this for its answer."""
        least = min(self.answer_seconds, max(seconds, LEAST_ANSWER_SECONDS))
        return msgspec.structs.replace(self, answer_seconds=least)


class Pause(msgspec.Struct, frozen=True):
    """Wait before the next question."""

    seconds: float


class Attempt(NamedTuple):
    """The result of a Question or a Pause."""

    outcome: Reply | FailedAnswer | None
    at: ClockReading
    chance: float
    """A random number from 0 up to 1."""
    held: bool = False
    """True if the headers that hold on one connection only were sent."""


Do: TypeAlias = Callable[[Question | Pause], Attempt]


class Session:
    """The knowledge about the server, shared by all calls of one client."""

    def __init__(
        self, pace: Pace, candidates: Sequence[EndpointAddress], name: str | None = None
    ) -> None:
        self.pace = pace
        self.name = name
        self.version = NEWEST_VERSION.name
        """The version to ask for the document by."""
        self._taken = ""
        """The version of the last document; `""` before the first."""
        self._newest_tries = NEWEST_TRIES
        self._is_named = False
        """True if the server has named its versions."""
        self.report = ""
        """The report of this machine's state, as `Question.report`."""
        self.takes_reports: bool | None = None
        """True if the server is Forewarn: no other gets reports of the machine's state. None before
        the first document."""
        self.settled = False
        self._candidates = tuple(candidates)
        self._tried = self._candidates[0]
        self._proven: EndpointAddress | None = None
        self._refusals = 0
        self._instance = INSTANCE_VERSIONS[0]
        self._name_at = self._learnt_at = float("-inf")
        self.is_given = name is not None
        """True if the name is the caller's own word."""
        self._is_doubted = False
        self.misnamed = ""
        """The endpoint's name for this machine where it is not the given one; `""` otherwise."""

    @property
    def endpoint(self) -> EndpointAddress:
        """The address to ask now: the one that has given a document, else the next to try."""
        return self._proven or self._tried

    def question(self, tag: bytes | None = None, *, version: str = "") -> Question:
        """Return the question for the document, or with the last one's tag to wait for the next."""
        pace, version = self.pace, version or self.version
        question = Question(
            endpoint=self.endpoint,
            target=f"/metadata/scheduledevents?api-version={version}",
            version=version,
            report=self.report if self.takes_reports else "",
            answer_seconds=pace.answer_seconds if self._proven else pace.first_answer_seconds,
        )
        if tag is None:
            return question
        held = ((b"If-None-Match", tag), (b"Prefer", b"wait=%d" % pace.wait_seconds))
        return msgspec.structs.replace(question, held=held, held_seconds=pace.wait_seconds)

    def approval(self, event_ids: Sequence[str]) -> Question:
        """Return the question that approves."""
        body = codec.encode_start_requests(event_ids)
        question = self.question(version=self._taken or self.version)
        return msgspec.structs.replace(question, method=b"POST", body=body, report="")

    def instance_question(self, leaf: str = "", form: str = "json") -> Question:
        """Return the question for this machine's names and place, or for a leaf of that."""
        # An older one for once: the refusal may have passed, and the newer one tells more.
        version, self._instance = self._instance, INSTANCE_VERSIONS[0]
        return Question(
            endpoint=self.endpoint,
            target=f"/metadata/instance/compute{leaf}?api-version={version}&format={form}",
            version=version,
            of_instance=True,
            answer_seconds=self.pace.answer_seconds,
        )

    def accepted(self, question: Question, reply: Reply) -> None:
        """Record that the server has given a document for this question."""
        self.takes_reports = FOREWARN in (header(reply, b"server") or b"")
        self._proven, self.version, self.settled = question.endpoint, question.version, True
        self._taken, self._refusals = question.version, 0
        if self._taken == NEWEST_VERSION.name:
            self._newest_tries, self._is_named = NEWEST_TRIES, False
        elif self._newest_tries and not self._is_named:
            self._newest_tries -= 1
            self.version, self.settled = NEWEST_VERSION.name, False

    def asks_again(self, failure: FailedAnswer, question: Question) -> bool:
        """Record a failure; return True to ask again at once, elsewhere or by another version."""
        if self._moves_on(failure, question):
            return True
        if failure.status != 400:
            return False
        if not question.of_instance:
            return self._steps_down(failure, question)
        if question.version == INSTANCE_VERSIONS[-1]:
            return False
        self._instance = INSTANCE_VERSIONS[-1]
        return True

    def _moves_on(self, failure: FailedAnswer, question: Question) -> bool:
        # Until one address has given a document, the next is asked where one is not an endpoint.
        if self._proven or failure.reason not in NOT_AN_ENDPOINT:
            return False
        following = (self._candidates.index(question.endpoint) + 1) % len(self._candidates)
        if self._tried == question.endpoint:  # else another thread has moved on already
            self._tried = self._candidates[following]
        return following > 0

    def _steps_down(self, failure: FailedAnswer, question: Question) -> bool:
        # A server that does not know the newest version may name those that it knows (section 9).
        # After the oldest the newest comes again.
        if question.version in failure.newest_versions:
            return False
        older = _VERSIONS[: _VERSIONS.index(question.version)]
        if question.version != self.version:  # another thread has stepped down already
            return bool(older)
        self._refusals += 1
        self._is_named = bool(failure.newest_versions)
        doubted = self._is_named or self._refusals >= REFUSALS_UNTIL_DOUBT
        if self.settled and not doubted:
            return False
        known = [name for name in older if name in failure.newest_versions]
        self.settled, self.version = False, (known or older or _VERSIONS)[-1]
        return bool(older)

    def wants_name(self, at: ClockReading) -> bool:
        """Return True if it is time to ask for the name."""
        return (self.name is None or self._is_doubted) and at.monotonic >= self._name_at

    def want_name(self) -> None:
        """Ask for the name at once if it is not known: the server is back, or has a new event."""
        self._name_at = float("-inf")

    def doubt_name(self) -> None:
        """Ask again for the name that the endpoint told: it may have another one by now."""
        if self._learnt_at > float("-inf") and not self._is_doubted:
            self._is_doubted, self._name_at = True, self._learnt_at + NAME_HOLDS_SECONDS

    def compare_name(self) -> None:
        """Ask for the name even though it was given: the endpoint may have another."""
        if self.is_given and not self._is_doubted:
            self._is_doubted, self._name_at = True, float("-inf")

    def learnt(self, name: str, at: ClockReading) -> None:
        """Record the name from the endpoint; one that was given stays, and is compared."""
        self._learnt_at, self._is_doubted = at.monotonic, False
        if not self.is_given:
            self.name = name
        elif codec.concerns([name], (self.name or "").removeprefix(codec.PREVIEW_PREFIX)):
            self.misnamed = ""
        else:
            self.misnamed = name
            self._is_doubted, self._name_at = True, at.monotonic + NAME_PAUSE_SECONDS

    def trust_name(self) -> None:
        """Ask no more for a name that was given, where the server tells none."""
        self._is_doubted = self._is_doubted and not self.is_given

    def leave_name(self, at: ClockReading) -> None:
        """Leave the name for later: events do not wait for a name that is not to be had."""
        self._name_at = at.monotonic + NAME_PAUSE_SECONDS

    def pause(self, failures: int, failure: FailedAnswer, chance: float) -> Pause:
        """Return the pause after failures in a row."""
        return Pause(self.pace.backoff(failures, chance, failure.retry_after_seconds))


Ask: TypeAlias = Callable[[Session, Do, ClockReading], T]
"""Asks until it has a result, or raises a ClientError."""


def document(session: Session, do: Do, at: ClockReading) -> event.Document:
    """Ask for the document, and for this machine's name where it is not known."""
    found, attempt = _read_document(session, do, at, session.pace.first_answer_seconds)
    if isinstance(found, FailedAnswer):
        raise found.error()
    if session.wants_name(attempt.at):
        learn_name(session, do, attempt.at)
    assert isinstance(attempt.outcome, Reply)  # the listing was read from it
    sent = server_time(attempt.outcome)
    events = tuple(seen(each, session.name, attempt.at, sent) for each in found.events)
    return event.Document(incarnation=found.incarnation, events=events)


def _read_document(
    session: Session, do: Do, at: ClockReading, seconds: float
) -> tuple[Listing | FailedAnswer, Attempt]:
    found, question, attempt = _answer(
        session, do, at, session.question, listing_of, seconds=seconds
    )
    if isinstance(found, Listing) and isinstance(attempt.outcome, Reply):
        session.accepted(question, attempt.outcome)
    return found, attempt


def report(session: Session, do: Do, at: ClockReading, status: str, reason: str) -> None:
    """Report this machine's state to Forewarn, now and with each later question.

    A client without a document reads it first, to learn who answers.
    """
    try:
        said = AgentReport(AgentStatus(status), reason)
    except ValueError:
        known = ", ".join(each.value for each in AgentStatus)
        raise Misuse(f"invalid status {status!r}: expected one of {known}") from None
    session.report = codec.encode_agent_report(said)
    if session.takes_reports is None:
        _read_document(session, do, at, session.pace.answer_seconds)
    if session.takes_reports:
        do(session.question())


def learn_name(session: Session, do: Do, at: ClockReading) -> FailedAnswer | None:
    """Learn this machine's name, if possible in a few seconds; else return the failure."""
    session.leave_name(at)  # a caller that gives up in the middle asks for events first
    name, _, attempt = _answer(
        session,
        do,
        at,
        lambda: session.instance_question("/name", "text"),
        name_in,
        seconds=NAME_SECONDS,
        tries=NAME_TRIES,
        ends=_tells_no_names,
    )
    if isinstance(name, FailedAnswer):
        session.leave_name(attempt.at)
        if _tells_no_names(name):
            session.trust_name()
        return name
    session.learnt(name, attempt.at)
    return None


def machine(session: Session, do: Do, at: ClockReading) -> event.MachineIdentity:
    """Ask for this machine's names and place."""
    found, _, _ = _answer(
        session, do, at, session.instance_question, machine_in, seconds=float("inf")
    )
    if isinstance(found, FailedAnswer):
        raise found.error()
    return found


def _refuses(failure: FailedAnswer) -> bool:
    return failure.status in REFUSALS


def _tells_no_names(failure: FailedAnswer) -> bool:
    status = failure.status
    return status is not None and status < 500 and status not in {410, 429}


def _answer(
    session: Session,
    do: Do,
    at: ClockReading,
    ask: Callable[[], Question],
    read: Callable[[Reply, EndpointAddress], T | FailedAnswer],
    *,
    seconds: float,
    tries: int = TRIES,
    ends: Callable[[FailedAnswer], bool] = _refuses,
) -> tuple[T | FailedAnswer, Question, Attempt]:
    # Ask until an answer can be read, or no try is left: `ends` says that another would fail as
    # well, and each address has its own seconds.
    until = at.monotonic + seconds
    failures = 0
    while True:
        question = ask().within(until - at.monotonic)
        attempt = do(question)
        at = attempt.at
        found = _read(attempt, question, read)
        if not isinstance(found, FailedAnswer):
            return found, question, attempt
        if session.asks_again(found, question):
            if session.endpoint != question.endpoint:
                until = at.monotonic + seconds
            continue
        failures += 1
        pause = session.pause(failures, found, attempt.chance)
        if failures >= tries or at.monotonic + pause.seconds >= until or ends(found):
            return found, question, attempt
        at = do(pause).at


def _read(
    attempt: Attempt, question: Question, read: Callable[[Reply, EndpointAddress], T]
) -> T | FailedAnswer:
    assert attempt.outcome is not None  # a question was asked
    if isinstance(attempt.outcome, FailedAnswer):
        return attempt.outcome
    return read(attempt.outcome, question.endpoint)


def approve(
    session: Session,
    do: Do,
    at: ClockReading,
    events: Sequence[event.Event | str],
    within_seconds: float | None,
) -> None:
    """Approve events, until the server has confirmed with 200 (protocol.md section 5).

    An approval counts once however often it is sent, so one whose answer was lost is sent again.
    Before that the document is read: an event that two documents in a row do not list is over, and
    needs no approval.
    """
    ids = _ids_of(events)
    seconds = session.pace.approve_seconds if within_seconds is None else within_seconds
    until = at.monotonic + seconds
    last: FailedAnswer | None = None
    failures = 0
    posting, missing = session.settled, set[str]()
    while True:
        question = session.approval(ids) if posting else session.question()
        question = question.within(until - at.monotonic)
        attempt = do(question)
        at = attempt.at
        read = confirmation_in if posting else listing_of
        found = _read(attempt, question, read)
        if found is None:
            return
        if isinstance(found, Listing):
            assert isinstance(attempt.outcome, Reply)  # the listing was read from it
            session.accepted(question, attempt.outcome)
            listed = {each.key for each in found.events}
            unsure = last is None or bool(found.nameless)
            absent = {each for each in ids if not unsure and ascii_upper(each) not in listed}
            posting = bool(missing) or not absent
            ids = tuple(each for each in ids if each not in missing & absent)
            if last is not None and not ids:
                raise last.error("the event ended before its approval was confirmed: ")
            missing = set() if posting else absent
            if missing:  # another replica may be behind: it has time to catch up
                at = do(Pause(session.pace.poll(attempt.chance))).at
            continue
        blames_version = not posting or bool(found.newest_versions)
        posting = False
        if blames_version and session.asks_again(found, question):
            continue
        if _refuses(found):
            raise found.error()
        last = found
        failures += 1
        pause = session.pause(failures, found, attempt.chance)
        if at.monotonic + pause.seconds >= until:
            raise found.error("the approval was not confirmed in time: ")
        at = do(pause).at


def _ids_of(events: Sequence[event.Event | str]) -> tuple[str, ...]:
    ids: dict[str, str] = {}
    for each in events:
        event_id = each.event_id if isinstance(each, event.Event) else each
        if not event_id or not isinstance(event_id, str):
            raise Misuse(f"{each!r} is neither an event nor an EventId")
        ids.setdefault(ascii_upper(event_id), event_id)
    if not 0 < len(ids) <= refusals.MAX_START_REQUESTS:
        raise Misuse(f"approve 1 to {refusals.MAX_START_REQUESTS} events at once, not {len(ids)}")
    return tuple(ids.values())
