"""What a client has learnt of its server: the version it takes, whether it answers, our name."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from forewarn.client.answers import Failure
from forewarn.client.discovery import Endpoint
from forewarn.client.pace import Moment, Pace
from forewarn.protocol import versions
from forewarn.protocol.message import Reply

_NAMES: Final = tuple(version.name for version in versions.VERSIONS)

INSTANCE_VERSIONS: Final = ("2019-03-11", "2017-08-01")
"""What the instance service is asked by: the first that tells the resource id, and one that every
server has."""

REFUSALS_UNTIL_DOUBT: Final = 3
"""Refusals in a row after which a version that was taken before is thought to be refused: one
alone is more likely the fault of something in between."""

NAME_TRIES: Final = 3
"""Failures in a row after which the name is left for later: the events must not wait for it."""

NAME_PAUSE_SECONDS: Final = 60.0
"""How long the name is left then."""


NOT_AN_ENDPOINT: Final = frozenset(
    {"no-connection", "no-answer", "cut", "no-http", "no-document", "encoded", "too-large"}
    | {"status-302", "status-303", "status-307", "status-308", "status-404"}
)
"""Reasons of a failure after which the next place is tried, as long as none has answered."""


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A question to be asked now."""

    method: bytes
    path: str
    """Path and query, from `/metadata` on."""
    answer_seconds: float
    """How long the whole answer may take, from the question on."""
    body: bytes = b""
    held: tuple[tuple[bytes, bytes], ...] = ()
    """Headers that hold only on the connection that the answer before came on; on another they
    are left away: the server there may be another, with the same number for another document."""
    held_seconds: float = 0.0
    """How much longer the answer may take with these."""


class Pause(msgspec.Struct, frozen=True):
    """Nothing to be asked for so long."""

    seconds: float


class Turn(NamedTuple):
    """What a shell says when it has done what was wanted."""

    outcome: Reply | Failure | None
    """What came of a question; None after a pause."""
    moment: Moment
    """When."""
    chance: float
    """From 0 up to 1, drawn anew."""
    held: bool = False
    """Whether the headers that hold on one connection only were sent."""


class Terms:
    """What is known of the server, shared by all that one client does.

    Args:
        pace: The client's times.
        endpoints: Where the server may be, in the order in which to try.
        name: This machine's name; None where it is to be learnt.
    """

    def __init__(self, pace: Pace, endpoints: Sequence[Endpoint], name: str | None = None) -> None:
        self.pace = pace
        self._endpoints = tuple(endpoints)
        self._place = 0
        self.name = name
        self.version = versions.NEWEST.name
        self.settled = False
        """Whether the server has taken this version."""
        self.answered = False
        """Whether it has given any document at all."""
        self._doubts = 0
        self._instance = INSTANCE_VERSIONS[0]
        self._name_tries = 0
        self._name_at = float("-inf")

    @property
    def answer_seconds(self) -> float:
        """How long an answer may take now: the first one is waited for patiently."""
        return self.pace.answer_seconds if self.answered else self.pace.first_answer_seconds

    def question(self, tag: bytes | None = None) -> Ask:
        """Return the question for the document.

        Args:
            tag: That of the document which is held, to wait for the next one; None to be answered
                at once (protocol.md section 10).
        """
        seconds = self.answer_seconds
        path = self._events_path
        if tag is None:
            return Ask(method=b"GET", path=path, answer_seconds=seconds)
        wait = self.pace.wait_seconds
        held = ((b"If-None-Match", tag), (b"Prefer", b"wait=%d" % wait))
        return Ask(method=b"GET", path=path, answer_seconds=seconds, held=held, held_seconds=wait)

    def approval(self, body: bytes) -> Ask:
        """Return the question that approves."""
        seconds = self.answer_seconds
        return Ask(method=b"POST", path=self._events_path, answer_seconds=seconds, body=body)

    def name_question(self) -> Ask:
        """Return the question for this machine's name."""
        path = f"/metadata/instance/compute/name?api-version={self._instance}&format=text"
        return Ask(method=b"GET", path=path, answer_seconds=self.pace.answer_seconds)

    def machine_question(self) -> Ask:
        """Return the question for what this machine is called."""
        path = f"/metadata/instance/compute?api-version={self._instance}&format=json"
        return Ask(method=b"GET", path=path, answer_seconds=self.pace.answer_seconds)

    @property
    def _events_path(self) -> str:
        return f"/metadata/scheduledevents?api-version={self.version}"

    @property
    def endpoint(self) -> Endpoint:
        """Where to ask now."""
        return self._endpoints[self._place]

    def accepted(self) -> None:
        """Take note that the server has given a document by this version."""
        self.settled = self.answered = True
        self._doubts = 0

    def asks_anew(self, failure: Failure) -> bool:
        """Take note of a failure; tell whether to ask again at once, elsewhere or otherwise."""
        return self.moves_on(failure) or self._stepped_down(failure)

    def moves_on(self, failure: Failure) -> bool:
        """Tell whether to ask at another place, where what failed does not speak as an endpoint.

        Only as long as nobody has given a document, and until every place was asked.
        """
        if self.answered or failure.reason not in NOT_AN_ENDPOINT:
            return False
        self._place = (self._place + 1) % len(self._endpoints)
        return self._place > 0

    def _stepped_down(self, failure: Failure) -> bool:
        """Tell whether to ask again by an older version.

        A cloud that does not know the newest version answers 400, and may name those that it knows
        (protocol.md section 9). After the oldest the newest comes again.
        """
        if failure.status != 400 or self.version in failure.newest_versions:
            return False
        self._doubts += 1
        if self.settled and not failure.newest_versions and self._doubts < REFUSALS_UNTIL_DOUBT:
            return False
        self.settled = False
        older = _NAMES[: _NAMES.index(self.version)]
        known = [name for name in older if name in failure.newest_versions]
        self.version = (known or older or _NAMES)[-1]
        return bool(older)

    def instance_stepped_down(self, failure: Failure) -> bool:
        """The same for the instance service, which has versions of its own."""
        if failure.status != 400 or self._instance == INSTANCE_VERSIONS[-1]:
            return False
        self._instance = INSTANCE_VERSIONS[-1]
        return True

    def wants_name(self, moment: Moment) -> bool:
        """Tell whether the name is to be asked for now."""
        return self.name is None and moment.monotonic >= self._name_at

    def named(self, name: str) -> None:
        """Take note of this machine's name."""
        self.name = name

    def doubts_no_name(self) -> None:
        """Take note that the server is back: a name that could not be learnt may be now."""
        self._name_tries, self._name_at = 0, float("-inf")

    def no_name(self, failure: Failure, moment: Moment) -> bool:
        """Take note that the name was not learnt; tell whether to try again soon.

        Events do not wait for a name that cannot be had: it is asked for again later.
        """
        self._name_tries += 1
        transient = failure.status is None or failure.status in {410, 429} or failure.status >= 500
        if transient and self._name_tries < NAME_TRIES:
            return True
        self.leaves_name(moment)
        return False

    def leaves_name(self, moment: Moment) -> None:
        """Take note that the name is left for later."""
        self._name_tries = 0
        self._name_at = moment.monotonic + NAME_PAUSE_SECONDS
