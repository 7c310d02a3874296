"""Judges a request: an HttpRequest value in, a Reply value out (protocol.md sections 3 and 9).

When several things are wrong, the first in the order of section 3, rule 6 is answered:

    limits of the transport    by the server
    path ... version           by `judge`, line by line
    caller, rate               by the server, which knows both; `is_rated` excepts approvals
    body                       by `start_requests`

`refuse` writes each refusal.

A waiting GET is a `GetDocument` that says how long it may wait (section 10); `hold_seconds` tells
how long to hold its answer.
"""

import functools
import ipaddress
import re
from collections.abc import Iterable, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from forewarn.protocol import (
    agent_status,
    codec,
    identity,
    instance,
    refusals,
    target,
    text,
    versions,
)
from forewarn.protocol.agent_status import AgentReport
from forewarn.protocol.identity import Claim
from forewarn.protocol.instance import Tree
from forewarn.protocol.message import Headers, HttpRequest, Reply
from forewarn.protocol.refusals import Refusal
from forewarn.protocol.target import Resource, Target
from forewarn.protocol.versions import Version
from forewarn.version import __version__

MAX_WAIT_SECONDS: Final = 120
"""The longest that an answer is held (section 10): proxies and NAT keep a silent connection for
minutes."""

CATCH_UP_SECONDS: Final = 1
"""How long the answer is held to a client that has read a later document than there is here, such
as from another replica: many times what a replica is behind by."""

_MAX_INCARNATION_DIGITS: Final = 19
"""What the store's numbers have at most: a longer one was never read from us."""

_MAX_HOSTS: Final = 64
"""Values of Host whose judgement is kept: guests send the same few, and strangers fill no more."""

_MAX_DIGITS: Final = 9
"""More digits are far beyond the longest wait, and Python refuses to parse thousands."""

_TOKEN: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]++"
_QUOTED: Final = rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)'
"""An unclosed one goes on to the end. All parts are possessive: parsing takes linear time."""
_ELEMENT: Final = re.compile(rb'(?:%s|[^",]++)++' % _QUOTED, re.DOTALL)
"""An element of a comma list, whose quoted strings may hold commas."""
_PREFERENCE: Final = re.compile(
    rb"[ \t]*+(%s)[ \t]*+(?:=[ \t]*+(%s|%s)?+[ \t]*+)?+(?:;.*+)?+" % (_TOKEN, _TOKEN, _QUOTED),
    re.DOTALL,
)
"""`token [ BWS "=" BWS word ]`, and parameters; `wait` has none."""


def wait_seconds(values: Iterable[bytes]) -> int:
    """Return the first `wait` preference (RFC 7240), MAX_WAIT_SECONDS at most; 0 without one."""
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


SERVER: Final = f"IMDS/1.0 Forewarn/{__version__}".encode()
"""The Server header: clients expect it to begin with `IMDS/` (protocol.md section 9)."""

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


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What the settings decide about requests."""

    post_without_header: Literal["preview", "always", "never"] = "preview"
    """Which versions' POST may lack `Metadata: true`: the preview's, all, none (rule 1)."""


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """What the listener knows about a connection."""

    address: str = ""
    """The source address, for the error that names it."""
    trusted_proxy: bool = False
    """Whether it is a configured proxy, which must name its machine by signed headers (section
    10)."""
    without_header: bool = False
    """Whether `Metadata: true` may be missing: the peer is a proxy that is known to drop it."""
    vm_paths: bool = False
    """Whether `/vm/NAME/metadata/...` is served: loopback listeners only (section 10)."""


class IfNoneMatch(msgspec.Struct, frozen=True):
    """The entity tags of If-None-Match."""

    tags: tuple[bytes, ...] = ()
    """Without quotes and without the weakness mark."""
    anything: bool = False
    """Whether it was `*`, which every document matches."""

    def matches(self, incarnation: int) -> bool:
        """Tell whether the client holds the document of this incarnation."""
        return self.anything or b"%d" % incarnation in self.tags

    def is_ahead_of(self, incarnation: int) -> bool:
        """Tell whether the client has read a later document than that of this incarnation."""
        return any(
            tag.isdigit() and len(tag) <= _MAX_INCARNATION_DIGITS and int(tag) > incarnation
            for tag in self.tags
        )


CallerHint: TypeAlias = str | Claim | None
"""Who asks, by the request itself: the name in a `/vm/NAME` prefix, or a trusted proxy's claim."""


class GetDocument(msgspec.Struct, frozen=True, kw_only=True):
    """GET /metadata/scheduledevents."""

    version: Version
    if_none_match: IfNoneMatch = IfNoneMatch()
    wait_seconds: int = 0
    """How long the answer may be held; 0 without an entity tag to compare with."""
    machine: CallerHint = None
    agent: AgentReport | None = None
    """What the machine's agent says of it (section 10); None where it says nothing."""


class PostApproval(msgspec.Struct, frozen=True, kw_only=True):
    """POST /metadata/scheduledevents."""

    version: Version
    machine: CallerHint = None


class GetInstance(msgspec.Struct, frozen=True, kw_only=True):
    """GET /metadata/instance, all or a part of it."""

    path: tuple[str, ...] = ()
    format: Literal["json", "text"] = "json"
    machine: CallerHint = None


class GetVersions(msgspec.Struct, frozen=True, kw_only=True):
    """GET /metadata/versions."""

    machine: CallerHint = None


ValidRequest: TypeAlias = GetDocument | PostApproval | GetInstance | GetVersions
"""A request without errors so far; the caller, the rate and the body are still to check."""


_EVENTS_METHODS: Final = (b"GET", b"POST")
_NEIGHBOURS_METHODS: Final = (b"GET",)
_INSTANCE_VERSIONS: Final = frozenset(versions.INSTANCE_VERSIONS)
_FORMATS: Final[dict[str, Literal["json", "text"]]] = {"json": "json", "text": "text"}
_ENTITY_TAG: Final = re.compile(rb'[\s,]*(?:[Ww]/)?(?:"([^"]*)"|([^\s,"]+))\s*(?:,|$)')
_HOST: Final = re.compile(rb"(?:\[([^\[\]]+)\]|([^\[\]:]+))(?::[0-9]*)?")
"""An address in brackets or any other name, then perhaps a port."""
_JSON: Final = (b"Content-Type", b"application/json; charset=utf-8")
_TEXT: Final = (b"Content-Type", b"text/plain; charset=utf-8")


def _wrong_version(known: Sequence[str]) -> Reply:
    newest = tuple(known[: -refusals.NEWEST_NAMED - 1 : -1])
    body = codec.encode_error(refusals.VERSION.text, newest)
    return Reply(refusals.VERSION.status, body, (_JSON,))


_WRONG_VERSION: Final = _wrong_version(list(versions.BY_NAME))
_WRONG_INSTANCE_VERSION: Final = _wrong_version(versions.INSTANCE_VERSIONS)


def judge(request: HttpRequest, peer: Peer, rules: Rules) -> Reply | ValidRequest:
    """Judge all that the request alone tells, line by line in the order of section 3, rule 6."""
    asked = target.read(request.target)
    if asked is None or (asked.machine is not None and not peer.vm_paths):
        return refuse(refusals.NOT_FOUND)
    methods = _EVENTS_METHODS if asked.resource is Resource.EVENTS else _NEIGHBOURS_METHODS
    if request.method not in methods:
        return refuse(refusals.METHOD, (b"Allow", b", ".join(methods)))
    read = _read_headers(request.headers)
    hint: CallerHint = asked.machine
    if peer.trusted_proxy:
        if (hint := identity.claim(read.identity)) is None:
            return refuse(refusals.UNSIGNED)
    elif (wrong := _not_from_a_guest(read, peer)) is not None:
        return refuse(wrong)
    has_header = read.metadata or peer.without_header
    if not has_header and not _needs_no_header(request.method, asked, rules):
        return refuse(refusals.NO_HEADER)
    if asked.doubled is not None:
        return refuse(refusals.DOUBLED_PARAMETER, name=asked.doubled)
    if asked.resource is Resource.EVENTS:
        return _events_request(request.method, asked, read, hint)
    if asked.resource is Resource.INSTANCE:
        return _instance_request(asked, hint)
    return GetVersions(machine=hint)


class _ReadHeaders(msgspec.Struct):
    """The values of the headers that the protocol reads."""

    metadata: bool = False
    """Whether Metadata is true."""
    forwarded: bool = False
    origin: bool = False
    host: bytes | None = None
    """The Host, of which the transport lets at most one through; HTTP/1.0 needs none."""
    agent: AgentReport | None = None
    """The last Forewarn-Agent that is not malformed."""
    tags: list[bytes] = []
    """Every If-None-Match."""
    preferences: list[bytes] = []
    """Every Prefer."""
    identity: list[tuple[bytes, bytes]] = []
    """Every header that names the machine a proxy speaks for, its name in lower case."""


def _read_headers(headers: Headers) -> _ReadHeaders:
    read = _ReadHeaders()
    for name, value in headers:
        match key := name.lower():
            case b"metadata":
                read.metadata = read.metadata or value.strip().lower() == b"true"
            case b"x-forwarded-for":
                read.forwarded = True
            case b"origin":
                read.origin = True
            case b"host":
                read.host = value
            case b"if-none-match":
                read.tags.append(value)
            case agent_status.HEADER:
                read.agent = agent_status.parse(value) or read.agent
            case b"prefer":
                read.preferences.append(value)
            case identity.ID | identity.SIGNATURE:
                read.identity.append((key, value))
    return read


def _not_from_a_guest(read: _ReadHeaders, peer: Peer) -> Refusal | None:
    """Refuse what a browser, or a proxy that is not a trusted one, has sent (rule 2)."""
    if peer.vm_paths and (read.origin or not _is_address(read.host)):
        return refusals.WEB_PAGE
    if read.forwarded:
        return refusals.FORWARDED
    return refusals.NO_TRUSTED_PROXY if read.identity else None


@functools.lru_cache(maxsize=_MAX_HOSTS)
def _is_address(host: bytes | None) -> bool:
    """Tell whether a Host is an IP address or localhost, with or without a port; or not there."""
    if host is None:
        return True
    found = _HOST.fullmatch(host.strip())
    if found is None:
        return False
    name = (found[1] or found[2]).decode("ascii", "replace")
    try:
        version = ipaddress.ip_address(name).version
    except ValueError:
        return found[1] is None and text.lower(name) == "localhost"
    return (version == 6) is (found[1] is not None)


def _needs_no_header(method: bytes, asked: Target, rules: Rules) -> bool:
    """Tell whether this POST may lack `Metadata: true` (section 3, rule 1)."""
    if method != b"POST" or rules.post_without_header == "never":
        return False
    version = versions.BY_NAME.get(asked.api_version or "")
    if version is None:
        return False
    return rules.post_without_header == "always" or not version.header_required_on_post


def _events_request(
    method: bytes, asked: Target, read: _ReadHeaders, hint: CallerHint
) -> Reply | ValidRequest:
    version = versions.BY_NAME.get(asked.api_version or "")
    if version is None:
        return _WRONG_VERSION
    if method == b"POST":
        return PostApproval(version=version, machine=hint)
    tags = _if_none_match(read.tags)
    waits = bool(tags.tags) and not tags.anything
    return GetDocument(
        version=version,
        if_none_match=tags,
        wait_seconds=wait_seconds(read.preferences) if waits else 0,
        machine=hint,
        agent=read.agent,
    )


def _instance_request(asked: Target, hint: CallerHint) -> Reply | ValidRequest:
    if asked.api_version not in _INSTANCE_VERSIONS:
        return _WRONG_INSTANCE_VERSION
    form = "json" if asked.format is None else asked.format
    if (known := _FORMATS.get(text.lower(form))) is None:
        return refuse(refusals.FORMAT, format=form)
    return GetInstance(path=asked.below, format=known, machine=hint)


def _if_none_match(values: list[bytes]) -> IfNoneMatch:
    """Parse the tags up to the first invalid one: after an unclosed quote all is ambiguous."""
    if not values:
        return IfNoneMatch()
    tags: list[bytes] = []
    for value in values:
        end = 0
        while found := _ENTITY_TAG.match(value, end):
            tags.append(found[1] or found[2] or b"")
            end = found.end()
    return IfNoneMatch(tuple(tags), any(value.strip() == b"*" for value in values))


def is_rated(wanted: ValidRequest) -> bool:
    """Tell whether the rate may refuse this: anything but an approval (section 9)."""
    return not isinstance(wanted, PostApproval)


def hold_seconds(wanted: GetDocument, incarnation: int) -> int:
    """Return how long to hold the answer until a change of the document; 0 to answer now.

    It is held for a client that already has this document and asked to wait, and for one that has
    read a later one: who follows his machine to another replica must not read backwards.
    """
    if wanted.if_none_match.matches(incarnation):
        return wanted.wait_seconds
    return CATCH_UP_SECONDS if wanted.if_none_match.is_ahead_of(incarnation) else 0


def document_reply(
    wanted: GetDocument, incarnation: int, body: bytes, *, waits: bool = False
) -> Reply:
    """Answer with the document, or with 304 to a client that already has it (section 4).

    `waits` says that the server holds answers: a client that asked for it learns so, and asks again
    at once instead of polling (section 10).
    """
    headers: tuple[tuple[bytes, bytes], ...] = ((b"ETag", b"%d" % incarnation),)
    if waits and wanted.wait_seconds:
        headers += ((b"Preference-Applied", b"wait=%d" % wanted.wait_seconds),)
    if wanted.if_none_match.matches(incarnation):
        return Reply(304, b"", headers)
    return Reply(200, body, (_JSON, *headers))


def instance_reply(wanted: GetInstance, tree: Tree) -> Reply:
    """Answer with the tree, a subtree or a leaf (section 1)."""
    try:
        found = instance.find(tree, wanted.path)
    except instance.NotInTree:
        return refuse(refusals.NOT_FOUND)
    if wanted.format == "text":
        return Reply(200, instance.as_text(found).encode(), (_TEXT,))
    if isinstance(found, str):
        path = "/".join(("/metadata/instance", *wanted.path))
        return refuse(refusals.LEAF_WITHOUT_TEXT, path=path)
    return Reply(200, codec.encode_tree(found), (_JSON,))


VERSIONS_REPLY: Final = Reply(200, codec.encode_versions(versions.INSTANCE_VERSIONS), (_JSON,))
"""The answer to /metadata/versions: the instance service's versions [O]."""

APPROVED: Final = Reply(200)
"""The answer to a stored approval: an empty body, since clients parse any other as JSON."""


def start_requests(body: bytes) -> tuple[str, ...] | Reply:
    """Return the EventIds that a POST approves, or the refusal of its body (section 5)."""
    try:
        return codec.decode_start_requests(body)
    except codec.Malformed as wrong:
        return refuse(refusals.BODY, wrong=str(wrong), limit=refusals.MAX_START_REQUESTS)


def unknown_caller(address: str, machine: CallerHint = None) -> Reply:
    """Refuse a caller that is not a registered machine.

    A proxy gets the same answer for a wrong signature and an unknown machine.
    """
    if machine is None:
        return refuse(refusals.UNKNOWN_CALLER, address=address)
    if isinstance(machine, Claim):
        return refuse(refusals.UNKNOWN_INSTANCE)
    return refuse(refusals.UNKNOWN_NAME, address=address, machine=machine)


def refuse(
    refusal: Refusal,
    *headers: tuple[bytes, bytes],
    retry_after_seconds: int | None = None,
    **facts: str | int,
) -> Reply:
    """Write a refusal with the facts of its text; it repeats only a part of what the client sent.

    `retry_after_seconds` says when to come back, 1 at least; None leaves it out.
    """
    if retry_after_seconds is not None:
        headers += ((b"Retry-After", b"%d" % max(1, retry_after_seconds)),)
    safe = {name: text.shown(str(fact)) for name, fact in facts.items()}
    body = codec.encode_error(refusal.text.format(**safe))
    return Reply(refusal.status, body, (_JSON, *headers))
