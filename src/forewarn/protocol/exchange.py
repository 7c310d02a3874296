"""A request judged: a Request value in, a Reply value out (protocol.md sections 3 and 9).

When several things are wrong, the first in the order of section 3, rule 6 is answered:

    limits of the transport    the shell's, with `head_too_large()` and the like
    path ... version           `judge`, line by line
    caller, rate               `admit`, once the shell has looked both up
    body                       `start_requests`

`respond` is the whole exchange in one call. A shell whose approval takes its time calls the
pieces in the same order: `judge`, `admit`, then what the wanted thing asks for.

A waiting GET is a `DocumentWanted` that says how long (section 10). A shell that lets it wait asks
`holds` whether it is to; `respond` answers it at once.
"""

import re
from collections.abc import Iterable
from typing import Final, Literal, Protocol, TypeAlias

import msgspec

from forewarn.protocol import codec, identity, instance, message, refusals, target, text, versions
from forewarn.protocol.identity import Claim
from forewarn.protocol.instance import Tree
from forewarn.protocol.refusals import Refusal
from forewarn.protocol.target import Resource, Target
from forewarn.protocol.versions import Version
from forewarn.version import __version__

MAX_WAIT_SECONDS: Final = 120
"""The longest that an answer is held back (protocol.md section 10): proxies and address
translation between a guest and its endpoint keep a silent connection for minutes, not for hours."""

_MAX_DIGITS: Final = 9
"""More digits are far beyond the longest wait, and Python itself refuses to read thousands."""

_TOKEN: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]++"
_QUOTED: Final = rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)'
"""One that is not closed goes on to the end. No part of these patterns gives back what it took, so
that no header takes longer than its length."""
_ELEMENT: Final = re.compile(rb'(?:%s|[^",]++)++' % _QUOTED, re.DOTALL)
"""An element of a comma list, whose quoted strings may hold commas."""
_PREFERENCE: Final = re.compile(
    rb"[ \t]*+(%s)[ \t]*+(?:=[ \t]*+(%s|%s)?+[ \t]*+)?+(?:;.*+)?+" % (_TOKEN, _TOKEN, _QUOTED),
    re.DOTALL,
)
"""`token [ BWS "=" BWS word ]`, and parameters, of which `wait` has none."""


def wait_seconds(values: Iterable[bytes]) -> int:
    """Return how long the answer may wait, MAX_WAIT_SECONDS at most; 0 where it may not.

    Of a preference that is named twice the first counts, as RFC 7240 section 2 says.

    Args:
        values: The value of every Prefer header, in their order.
    """
    for value in values:
        for element in _ELEMENT.findall(value):
            preference = _PREFERENCE.fullmatch(element)
            if preference is not None and preference[1].lower() == b"wait":
                return _seconds(preference[2] or b"")
    return 0


def _seconds(word: bytes) -> int:
    digits = word[1:-1] if word[:1] == word[-1:] == b'"' else word
    if not digits.isdigit():
        return 0
    digits = digits.lstrip(b"0")
    if len(digits) > _MAX_DIGITS:
        return MAX_WAIT_SECONDS
    return min(int(digits or b"0"), MAX_WAIT_SECONDS)


SERVER: Final = f"Forewarn/{__version__} IMDS".encode()
"""The Server header: clients look for `IMDS` in it (protocol.md section 9)."""

REASONS: Final[dict[int, bytes]] = {
    200: b"OK",
    304: b"Not Modified",
    400: b"Bad Request",
    403: b"Forbidden",
    404: b"Not Found",
    405: b"Method Not Allowed",
    408: b"Request Timeout",
    413: b"Content Too Large",
    417: b"Expectation Failed",
    429: b"Too Many Requests",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    501: b"Not Implemented",
    503: b"Service Unavailable",
    505: b"HTTP Version Not Supported",
}
"""The reason phrase of every status that a Reply can have."""


Headers: TypeAlias = message.Headers
Request: TypeAlias = message.Request
Reply: TypeAlias = message.Reply


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What the settings decide about requests."""

    preview_post_without_header: bool = True
    """Whether a POST at 2017-03-01 is taken without `Metadata: true` (section 3, rule 1)."""


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """What the listener says of a connection."""

    address: str = ""
    """The source address, for the error that names it."""
    trusted_proxy: bool = False
    """Whether the peer is a configured proxy: it may send X-Forwarded-For, and it must say whom it
    speaks for by signed headers (section 10)."""
    without_header: bool = False
    """Whether `Metadata: true` is not wanted: the peer is a proxy that is known to drop it."""
    vm_paths: bool = False
    """Whether `/vm/NAME/metadata/...` is served: loopback listeners only (section 10)."""


class IfNoneMatch(msgspec.Struct, frozen=True):
    """The entity tags that a client holds already."""

    tags: tuple[bytes, ...] = ()
    """Without quotes and without the mark of weakness."""
    anything: bool = False
    """Whether it said `*`, which every document matches."""

    def matches(self, incarnation: int) -> bool:
        """Tell whether the client holds the document of this incarnation."""
        return self.anything or b"%d" % incarnation in self.tags


Told: TypeAlias = str | Claim | None
"""What a request itself says of who asks: the name in a `/vm/NAME` prefix, as written; a trusted
proxy's claim; None where the connection must tell."""


class DocumentWanted(msgspec.Struct, frozen=True, kw_only=True):
    """GET /metadata/scheduledevents."""

    version: Version
    if_none_match: IfNoneMatch = IfNoneMatch()
    wait_seconds: int = 0
    """How long the answer may be held back for a change; 0 where it was not asked for, and where no
    entity tag tells what the client holds."""
    machine: Told = None


class ApprovalWanted(msgspec.Struct, frozen=True, kw_only=True):
    """POST /metadata/scheduledevents."""

    version: Version
    machine: Told = None


class InstanceWanted(msgspec.Struct, frozen=True, kw_only=True):
    """GET /metadata/instance, the whole or a part of it."""

    path: tuple[str, ...] = ()
    format: Literal["json", "text"] = "json"
    machine: Told = None


class VersionsWanted(msgspec.Struct, frozen=True, kw_only=True):
    """GET /metadata/versions."""

    machine: Told = None


Wanted: TypeAlias = DocumentWanted | ApprovalWanted | InstanceWanted | VersionsWanted
"""A request in which nothing is wrong so far: what is left is the caller, the rate, the body."""


class Knowledge(Protocol):
    """What a whole exchange asks of the world, in the order of its questions."""

    def caller(self, machine: Told) -> str | None:
        """Return the key of the registered machine that asks, None if there is none.

        Args:
            machine: What the request itself says of it.
        """
        ...

    def retry_after_seconds(self, caller: str) -> int:
        """Count this request; return 0 within the rate, else the seconds to stay away.

        Not asked for an approval, which is never refused for the rate (section 9).
        """
        ...

    def document(self, caller: str, version: Version) -> tuple[int, bytes]:
        """Return the incarnation and the rendered document of the caller's scope."""
        ...

    def tree(self, caller: str) -> Tree:
        """Return the caller's instance tree."""
        ...

    def approve(self, caller: str, event_ids: tuple[str, ...]) -> Reply:
        """Approve all or nothing: `approved()`, `unknown_event(...)` or `unavailable(...)`."""
        ...


_EVENTS_METHODS: Final = (b"GET", b"POST")
_NEIGHBOURS_METHODS: Final = (b"GET",)
_INSTANCE_VERSIONS: Final = frozenset(versions.INSTANCE_VERSIONS)
_NEWEST_OF_EVENTS: Final = tuple(
    version.name for version in versions.VERSIONS[: -refusals.NEWEST_NAMED - 1 : -1]
)
_NEWEST_OF_INSTANCE: Final = versions.INSTANCE_VERSIONS[: -refusals.NEWEST_NAMED - 1 : -1]
_FORMATS: Final[dict[str, Literal["json", "text"]]] = {"json": "json", "text": "text"}
_ENTITY_TAG: Final = re.compile(rb'[\s,]*(?:[Ww]/)?(?:"([^"]*)"|([^\s,"]+))\s*(?:,|$)')
_JSON: Final = (b"Content-Type", b"application/json; charset=utf-8")
_TEXT: Final = (b"Content-Type", b"text/plain; charset=utf-8")


def respond(request: Request, peer: Peer, rules: Rules, knowledge: Knowledge) -> Reply:
    """Answer a whole request, whose transport is in order, in one call."""
    wanted = judge(request, peer, rules)
    if isinstance(wanted, Reply):
        return wanted
    caller = knowledge.caller(wanted.machine)
    seconds = 0
    if caller is not None and is_rated(wanted):
        seconds = knowledge.retry_after_seconds(caller)
    refusal = admit(wanted, peer, caller, seconds)
    if refusal is not None:
        return refusal
    assert caller is not None  # admit refuses such a request
    return _answer(wanted, request.body, caller, knowledge)


def judge(request: Request, peer: Peer, rules: Rules) -> Reply | Wanted:
    """Judge all that the request alone tells: path, method, headers, parameters, version.

    The order of the lines is the order of section 3, rule 6. Never raises, whatever the bytes.
    """
    asked = target.read(request.target)
    if asked is None or (asked.machine is not None and not peer.vm_paths):
        return _refusal(refusals.NOT_FOUND)
    methods = _EVENTS_METHODS if asked.resource is Resource.EVENTS else _NEIGHBOURS_METHODS
    if request.method not in methods:
        return _refusal(refusals.METHOD, (b"Allow", b", ".join(methods)))
    said = _read_headers(request.headers)
    told: Told = asked.machine
    if peer.trusted_proxy:
        if (told := identity.claim(said.identity)) is None:
            return _refusal(refusals.UNSIGNED)
    elif said.forwarded:
        return _refusal(refusals.FORWARDED)
    elif said.identity:
        return _refusal(refusals.NO_TRUSTED_PROXY)
    has_header = said.metadata or peer.without_header
    if not has_header and not _taken_without_header(request.method, asked, rules):
        return _refusal(refusals.NO_HEADER)
    if asked.doubled is not None:
        return _refusal(refusals.DOUBLED_PARAMETER, name=asked.doubled)
    if asked.resource is Resource.EVENTS:
        return _events_wanted(request.method, asked, said, told)
    if asked.resource is Resource.INSTANCE:
        return _instance_wanted(asked, told)
    return VersionsWanted(machine=told)


class _Said:
    """What the headers say that the protocol reads."""

    __slots__ = ("forwarded", "identity", "metadata", "preferences", "tags")

    def __init__(self) -> None:
        self.metadata = False
        """Whether Metadata is true."""
        self.forwarded = False
        self.tags: list[bytes] = []
        """Every If-None-Match."""
        self.preferences: list[bytes] = []
        """Every Prefer."""
        self.identity: list[tuple[bytes, bytes]] = []
        """Every header that says whom a proxy speaks for, its name in lower case."""


def _read_headers(headers: Headers) -> _Said:
    said = _Said()
    for name, value in headers:
        match key := name.lower():
            case b"metadata":
                said.metadata = said.metadata or value.strip().lower() == b"true"
            case b"x-forwarded-for":
                said.forwarded = True
            case b"if-none-match":
                said.tags.append(value)
            case b"prefer":
                said.preferences.append(value)
            case identity.ID | identity.SIGNATURE:
                said.identity.append((key, value))
    return said


def _taken_without_header(method: bytes, asked: Target, rules: Rules) -> bool:
    """Tell whether it is the preview's POST (section 3, rule 1)."""
    version = versions.BY_NAME.get(asked.api_version or "")
    return (
        rules.preview_post_without_header
        and method == b"POST"
        and version is not None
        and not version.header_required_on_post
    )


def _events_wanted(method: bytes, asked: Target, said: _Said, told: Told) -> Reply | Wanted:
    version = versions.BY_NAME.get(asked.api_version or "")
    if version is None:
        return _wrong_version(_NEWEST_OF_EVENTS)
    if method == b"POST":
        return ApprovalWanted(version=version, machine=told)
    tags = _if_none_match(said.tags)
    waits = bool(tags.tags) and not tags.anything
    return DocumentWanted(
        version=version,
        if_none_match=tags,
        wait_seconds=wait_seconds(said.preferences) if waits else 0,
        machine=told,
    )


def _instance_wanted(asked: Target, told: Told) -> Reply | Wanted:
    if asked.api_version not in _INSTANCE_VERSIONS:
        return _wrong_version(_NEWEST_OF_INSTANCE)
    form = "json" if asked.format is None else asked.format
    if (known := _FORMATS.get(text.lower(form))) is None:
        return _refusal(refusals.FORMAT, format=form)
    return InstanceWanted(path=asked.below, format=known, machine=told)


def _if_none_match(values: list[bytes]) -> IfNoneMatch:
    """Read the tags, quoted or not, weak or not, in one list or in several headers.

    A list is read up to what is no tag: behind a quote without its end nobody knows what is one.
    """
    if not values:
        return IfNoneMatch()
    tags: list[bytes] = []
    for value in values:
        end = 0
        while found := _ENTITY_TAG.match(value, end):
            tags.append(found[1] or found[2] or b"")
            end = found.end()
    return IfNoneMatch(tuple(tags), any(value.strip() == b"*" for value in values))


def is_rated(wanted: Wanted) -> bool:
    """Tell whether the rate may refuse this: anything but an approval (section 9)."""
    return not isinstance(wanted, ApprovalWanted)


def admit(
    wanted: Wanted, peer: Peer, caller: object | None, retry_after_seconds: int
) -> Reply | None:
    """Judge who asks, and then how often.

    Args:
        wanted: What `judge` returned.
        peer: The connection.
        caller: The registered machine that asks, in whatever form; None if there is none.
        retry_after_seconds: 0 within the rate, else the seconds to stay away.

    Returns:
        The refusal, None where the request may go on.
    """
    if caller is None:
        return unknown_caller(peer.address, wanted.machine)
    if retry_after_seconds > 0 and is_rated(wanted):
        return too_many_requests(retry_after_seconds)
    return None


def _answer(wanted: Wanted, body: bytes, caller: str, knowledge: Knowledge) -> Reply:
    match wanted:
        case DocumentWanted():
            incarnation, document = knowledge.document(caller, wanted.version)
            return document_reply(wanted, incarnation, document)
        case InstanceWanted():
            return instance_reply(wanted, knowledge.tree(caller))
        case VersionsWanted():
            return versions_reply()
        case ApprovalWanted():
            event_ids = start_requests(body)
            if isinstance(event_ids, Reply):
                return event_ids
            return knowledge.approve(caller, event_ids)


def holds(wanted: DocumentWanted, incarnation: int) -> bool:
    """Tell whether the answer is to wait for a change: the client holds this document already."""
    return wanted.wait_seconds > 0 and wanted.if_none_match.matches(incarnation)


def document_reply(
    wanted: DocumentWanted, incarnation: int, body: bytes, *, waits: bool = False
) -> Reply:
    """Answer with the document, or with 304 to a client that holds it (section 4).

    Args:
        wanted: What was asked for.
        incarnation: The document's number, which is its entity tag, unquoted.
        body: The document as `codec.encode_document` writes it by `wanted.version`.
        waits: Whether the answer waited, or would have, where the client asked for that: then it is
            told so, and asks again at once instead of polling (section 10).
    """
    headers: tuple[tuple[bytes, bytes], ...] = ((b"ETag", b"%d" % incarnation),)
    if waits and wanted.wait_seconds:
        headers += ((b"Preference-Applied", b"wait=%d" % wanted.wait_seconds),)
    if wanted.if_none_match.matches(incarnation):
        return Reply(304, b"", headers)
    return Reply(200, body, (_JSON, *headers))


def instance_reply(wanted: InstanceWanted, tree: Tree) -> Reply:
    """Answer with the tree, a subtree or a leaf (section 1)."""
    try:
        found = instance.find(tree, wanted.path)
    except instance.NotInTree:
        return _refusal(refusals.NOT_FOUND)
    path = "/".join(("/metadata/instance", *wanted.path))
    if isinstance(found, str):
        if wanted.format == "text":
            return Reply(200, found.encode(), (_TEXT,))
        return _refusal(refusals.LEAF_WITHOUT_TEXT, path=path)
    if wanted.format == "text":
        return _refusal(refusals.TEXT_OF_SUBTREE, path=path)
    return Reply(200, codec.encode_tree(found), (_JSON,))


def versions_reply() -> Reply:
    """Answer /metadata/versions."""
    return Reply(200, codec.encode_versions(refusals.VERSIONS_LISTED), (_JSON,))


def start_requests(body: bytes) -> tuple[str, ...] | Reply:
    """Return the EventIds that a POST approves, or the refusal of its body (section 5)."""
    try:
        return codec.decode_start_requests(body)
    except codec.Malformed as wrong:
        return _refusal(refusals.BODY, wrong=str(wrong), limit=refusals.MAX_START_REQUESTS)


def approved() -> Reply:
    """Answer an approval that is stored: an empty body, since clients read any other as JSON."""
    return Reply(200)


def unknown_event(event_id: str) -> Reply:
    """Refuse an approval for an EventId that the caller's scope never published."""
    return _refusal(refusals.UNKNOWN_EVENT, event_id=event_id)


def unavailable(retry_after_seconds: int) -> Reply:
    """Refuse an approval that cannot be stored now."""
    return _refusal(refusals.UNAVAILABLE, _retry_after(retry_after_seconds))


def unknown_caller(address: str, machine: Told = None) -> Reply:
    """Refuse whoever is no registered machine.

    A proxy's guest reads the same of a wrong signature and of a right one for no machine, and
    nothing of either is repeated to it: what is wrong stands in the service's log.

    Args:
        address: Where it asked from.
        machine: What the request itself said of who asks.
    """
    if machine is None:
        return _refusal(refusals.UNKNOWN_CALLER, address=address)
    if isinstance(machine, Claim):
        return _refusal(refusals.UNKNOWN_INSTANCE)
    return _refusal(refusals.UNKNOWN_NAME, address=address, machine=machine)


def too_many_requests(retry_after_seconds: int) -> Reply:
    """Refuse a machine that asks more often than the rate allows."""
    return _refusal(refusals.TOO_MANY_REQUESTS, _retry_after(retry_after_seconds))


def head_too_large(limit_bytes: int = refusals.MAX_HEAD_BYTES) -> Reply:
    """Refuse a head over the limit."""
    return _refusal(refusals.HEAD_TOO_LARGE, limit_bytes=limit_bytes)


def body_too_large(limit_bytes: int = refusals.MAX_BODY_BYTES) -> Reply:
    """Refuse a body over the limit."""
    return _refusal(refusals.BODY_TOO_LARGE, limit_bytes=limit_bytes)


def too_many_headers() -> Reply:
    """Refuse a head with more headers than are read."""
    return _refusal(refusals.TOO_MANY_HEADERS, limit=refusals.MAX_HEADERS)


def too_many_chunks() -> Reply:
    """Refuse a body in more chunks than are read."""
    return _refusal(refusals.TOO_MANY_CHUNKS, limit=refusals.MAX_CHUNKS)


def unknown_expectation() -> Reply:
    """Refuse any Expect but `100-continue` (RFC 9110 section 10.1.1)."""
    return _refusal(refusals.EXPECTATION)


def unknown_coding() -> Reply:
    """Refuse a transfer coding that is not read here (RFC 9112 section 6.1)."""
    return _refusal(refusals.CODING)


def unknown_http_version(version: str) -> Reply:
    """Refuse another major version of HTTP (RFC 9110 section 15.6.6)."""
    return _refusal(refusals.HTTP_VERSION, version=version)


def too_many_connections(limit: int, whose: str, retry_after_seconds: int) -> Reply:
    """Refuse one connection more than the limit.

    Args:
        limit: How many there may be.
        whose: `This address` or `This service`.
        retry_after_seconds: When to come back.
    """
    return _refusal(
        refusals.CONNECTIONS, _retry_after(retry_after_seconds), limit=limit, whose=whose
    )


def malformed(what: str) -> Reply:
    """Refuse what is no HTTP request."""
    return _refusal(refusals.MALFORMED, what=what)


def too_slow() -> Reply:
    """Refuse a request that did not arrive in its time."""
    return _refusal(refusals.TOO_SLOW)


def internal() -> Reply:
    """Answer where the service failed by its own fault."""
    return _refusal(refusals.INTERNAL)


def _wrong_version(newest: tuple[str, ...]) -> Reply:
    body = codec.encode_error(refusals.VERSION.text, newest)
    return Reply(refusals.VERSION.status, body, (_JSON,))


def _retry_after(seconds: int) -> tuple[bytes, bytes]:
    return (b"Retry-After", b"%d" % max(1, seconds))


def _refusal(refusal: Refusal, *headers: tuple[bytes, bytes], **facts: str | int) -> Reply:
    """Write a refusal; of what a client sent it repeats a part, in valid UTF-8."""
    safe = {name: text.shown(str(fact)) for name, fact in facts.items()}
    return Reply(refusal.status, codec.encode_error(refusal.text.format(**safe)), (_JSON, *headers))
