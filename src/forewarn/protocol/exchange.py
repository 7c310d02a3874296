"""Judges a request: an HttpRequest value in, a Reply value out (protocol.md sections 3 and 9).

When several things are wrong, the first in the order of section 3, rule 6 is answered:

    limits of the transport    by the server
    path ... version           by `judge`, line by line
    caller, rate               by the server, which knows both; `is_rated` excepts approvals
    body                       by `start_requests`

`refuse` writes each refusal.

A waiting GET is a `GetDocument` with the time that it may wait (section 10); `hold_seconds` tells
how long to hold its answer. The headers that a request may have:

    Metadata, X-Forwarded-For, Origin, Host   may this request be answered?
    If-None-Match, Prefer                     the document that the client has, its longest wait
    Forewarn-Agent                            the state of its machine; `codec` reads it
    X-Instance-ID                             the machine that a proxy speaks for: its name or vmId
    X-Instance-ID-Signature                   hex HMAC-SHA256 of exactly that value, under a secret
                                              that both know

OpenStack's metadata agent signs in this way. The signature covers neither time nor request: anybody
who has seen one can replay it, so it counts only from a trusted proxy's address.
"""

import functools
import hmac
import ipaddress
import re
from collections.abc import Iterable, Sequence
from enum import Enum, auto
from typing import Final, Literal, TypeAlias
from urllib.parse import unquote_to_bytes

import msgspec

from forewarn.protocol import codec, instance, refusals
from forewarn.protocol.codec import AgentReport
from forewarn.protocol.instance import Tree
from forewarn.protocol.message import Headers, HttpRequest, Reply, ascii_lower, shown
from forewarn.protocol.refusals import Refusal
from forewarn.protocol.versions import VERSION_BY_NAME, Version
from forewarn.version import __version__

CATCH_UP_SECONDS: Final = 1
"""The hold of the answer to a client that has read a later document than there is here, such as
from another replica: many times what a replica is behind by."""


class Resource(Enum):
    """The resources of the endpoint (protocol.md section 1)."""

    EVENTS = auto()
    INSTANCE = auto()
    VERSIONS = auto()
    IDENTITY = auto()
    """Tokens of an identity at Azure, which no machine has."""
    LOAD_BALANCER = auto()
    """A load balancer of Azure's, which no machine has."""
    METADATA = auto()
    ROOT = auto()


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A target that leads to a resource."""

    resource: Resource
    below: tuple[str, ...] = ()
    """The path's segments below the resource, as written: of the instance tree, and of the load
    balancer."""
    machine: str | None = None
    """The name in a `/vm/NAME` prefix, as written; None without one."""
    api_version: str | None = None
    """None where it is missing, or where the path says `latest`."""
    format: str | None = None
    doubled: str | None = None
    """The first parameter that is given twice; None where none is."""


MAX_REMEMBERED_TARGETS: Final = 1024
"""Parsed targets that are kept: guests ask for the same few each second."""

MAX_REMEMBERED_TARGET_BYTES: Final = 256
"""Longer targets are not kept, so that strangers cannot fill the memory with them."""

MAX_STEPS: Final = 16
"""Segments of a path that are split, more than the deepest one has; a head has room for 8,000, and
what is behind these counts as one, which leads nowhere."""

_VM_PREFIX: Final = "vm"


def read_target(target: bytes) -> Target | None:
    """Return the target of a request, None if it leads nowhere: any bytes may come.

    Each segment is percent-decoded by itself, so an encoded slash never separates segments.
    """
    is_short = len(target) <= MAX_REMEMBERED_TARGET_BYTES
    return _remembered(target) if is_short else _read_target(target)


def _read_target(target: bytes) -> Target | None:
    path, _, query = target.partition(b"?")
    path = _without_authority(path)
    if not path.startswith(b"/"):
        return None
    steps = _steps(path)
    machine = None
    if len(steps) > 2 and ascii_lower(steps[0]) == _VM_PREFIX and steps[1]:
        machine, steps = steps[1], steps[2:]
    if steps and ascii_lower(steps[0]) != "metadata":
        return None
    parameters, doubled = _parameters(query)
    api_version = parameters.get(b"api-version")
    below: tuple[str, ...] = ()
    match [ascii_lower(step) for step in steps[1:]]:
        case ["scheduledevents"]:
            resource = Resource.EVENTS
        case ["latest", "scheduledevents"]:
            resource, api_version = Resource.EVENTS, None
        case ["versions"]:
            resource = Resource.VERSIONS
        case ["instance", *_]:
            resource, below = Resource.INSTANCE, steps[2:]
        case ["identity", *_]:
            resource = Resource.IDENTITY
        case ["loadbalancer", *_]:
            resource, below = Resource.LOAD_BALANCER, steps[2:]
        case []:
            resource = Resource.METADATA if steps else Resource.ROOT
        case _:
            return None
    return Target(
        resource=resource,
        below=below,
        machine=machine,
        api_version=_text(api_version),
        format=_text(parameters.get(b"format")),
        doubled=_text(doubled),
    )


_remembered = functools.lru_cache(maxsize=MAX_REMEMBERED_TARGETS)(_read_target)


def _without_authority(path: bytes) -> bytes:
    """Return the path, also of a whole URL, which a server must accept (RFC 9112, 3.2.2)."""
    scheme, separator, rest = path.partition(b"://")
    if separator and scheme.lower() == b"http":
        return b"/" + rest.partition(b"/")[2]
    return path


def _steps(path: bytes) -> tuple[str, ...]:
    return tuple(_decoded(step) for step in path.removesuffix(b"/").split(b"/", MAX_STEPS)[1:])


def _parameters(query: bytes) -> tuple[dict[bytes, bytes], bytes | None]:
    """Return the first value of each parameter, and the first parameter that is given twice.

    A head has room for 8,000, so nothing is made of a value that nobody asks for.
    """
    parameters: dict[bytes, bytes] = {}
    doubled = None
    for piece in query.replace(b"+", b" ").split(b"&"):
        if piece:
            raw_name, _, value = piece.partition(b"=")
            name = _unquoted(raw_name).lower()  # in any case [O]
            if name not in parameters:
                parameters[name] = value
            elif doubled is None:
                doubled = name
    return parameters, doubled


def _unquoted(value: bytes) -> bytes:
    return unquote_to_bytes(value) if b"%" in value else value


def _decoded(value: bytes) -> str:
    """Percent-decode a value; invalid UTF-8 becomes a character that matches nothing."""
    return _unquoted(value).decode("utf-8", "replace")


def _text(value: bytes | None) -> str | None:
    return None if value is None else _decoded(value)


INSTANCE_ID: Final = b"x-instance-id"
INSTANCE_SIGNATURE: Final = b"x-instance-id-signature"
IDENTITY: Final = frozenset((INSTANCE_ID, INSTANCE_SIGNATURE))


class RequestHeaders(msgspec.Struct):
    """The values of the headers that the protocol reads."""

    metadata: bool = False
    forwarded: bool = False
    origin: bool = False
    host: bytes | None = None
    """The Host; the transport lets at most one through, and HTTP/1.0 needs none."""
    agent: AgentReport | None = None
    """The last Forewarn-Agent that is not malformed."""
    tags: list[bytes] = []
    preferences: list[bytes] = []
    identity: list[tuple[bytes, bytes]] = []
    """Every header that names the machine a proxy speaks for, its name in lower case."""


def read_headers(headers: Headers) -> RequestHeaders:
    """Return the values of a request's headers; others are ignored."""
    found = RequestHeaders()
    for name, value in headers:
        match key := name.lower():
            case b"metadata":
                # A client that adds its default header twice, as .NET's does, sends a list.
                said = value.lower().split(b",")
                found.metadata = found.metadata or b"true" in [each.strip() for each in said]
            case b"x-forwarded-for":
                found.forwarded = True
            case b"origin":
                found.origin = True
            case b"host":
                found.host = value
            case b"if-none-match":
                found.tags.append(value)
            case codec.AGENT_HEADER:
                found.agent = codec.decode_agent_report(value) or found.agent
            case b"prefer":
                found.preferences.append(value)
            case _ if key in IDENTITY:
                found.identity.append((key, value))
    return found


_MAX_HOSTS: Final = 64
"""Values of Host whose judgement is kept: guests send the same few, and strangers fill no more."""

_HOST: Final = re.compile(rb"(?:\[([^\[\]]+)\]|([^\[\]:]+))(?::[0-9]*)?")
"""An address in brackets or any other name, then perhaps a port."""
_OWN_NAMES: Final = frozenset(
    ("localhost", "metadata.azure.internal", "host.docker.internal", "host.containers.internal")
)
"""Names that no web page can have: nobody can register one under `.internal`. The second is the
original's own, the others are how containers of Docker Desktop and Podman reach their host's
loopback addresses."""


@functools.lru_cache(maxsize=_MAX_HOSTS)
def is_own_host(host: bytes | None) -> bool:
    """Return True if a Host is an IP address or an own name, with or without a port; or absent."""
    if host is None:
        return True
    found = _HOST.fullmatch(host.strip())
    if found is None:
        return False
    name = (found[1] or found[2]).decode("ascii", "replace")
    try:
        version = ipaddress.ip_address(name).version
    except ValueError:
        return found[1] is None and ascii_lower(name) in _OWN_NAMES
    return (version == 6) is (found[1] is not None)


MAX_WAIT_SECONDS: Final = 120
"""The longest that an answer is held (section 10): proxies and NAT keep a silent connection for
minutes."""

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


_MAX_INCARNATION_DIGITS: Final = 19
"""The most digits of the store's numbers: a longer one was never read from us."""

_ENTITY_TAG: Final = re.compile(rb'[\s,]*(?:[Ww]/)?(?:"([^"]*)"|([^\s,"]+))\s*(?:,|$)')


class IfNoneMatch(msgspec.Struct, frozen=True):
    """The entity tags of If-None-Match."""

    tags: tuple[bytes, ...] = ()
    """Without quotes and without the weakness mark."""
    anything: bool = False
    """True if it was `*`, which every document matches."""

    def matches(self, incarnation: int) -> bool:
        """Return True if the client holds the document of this incarnation."""
        return self.anything or b"%d" % incarnation in self.tags

    def is_ahead_of(self, incarnation: int) -> bool:
        """Return True if the client has read a later document than that of this incarnation."""
        return any(
            tag.isdigit() and len(tag) <= _MAX_INCARNATION_DIGITS and int(tag) > incarnation
            for tag in self.tags
        )


def if_none_match(values: list[bytes]) -> IfNoneMatch:
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


class Claim(msgspec.Struct, frozen=True):
    """A proxy's claim of the machine that asks, not verified yet."""

    id: bytes
    """The value as sent, without blanks around it: the text that was signed."""
    signature: bytes


def claim(said: Sequence[tuple[bytes, bytes]]) -> Claim | None:
    """Return the claim in a request's headers of IDENTITY; None unless each occurs exactly once."""
    values = dict(said)
    if len(said) != len(IDENTITY) or len(values) != len(IDENTITY):
        return None
    return Claim(values[INSTANCE_ID].strip(), values[INSTANCE_SIGNATURE].strip())


def sign(id_: bytes, secret: bytes) -> bytes:
    """Return the signature of an id."""
    return hmac.digest(secret, id_, "sha256").hex().encode("ascii")


def is_signed(said: Claim, secrets: Sequence[bytes]) -> bool:
    """Return True if one of these secrets signed the claim; compares in constant time."""
    shown = said.signature.lower()
    matches = [hmac.compare_digest(sign(said.id, secret), shown) for secret in secrets]
    return any(matches)


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
    """The settings that concern requests."""

    post_without_header: Literal["preview", "always", "never"] = "preview"
    """The versions whose POST may lack `Metadata: true`: the preview's, all, none (rule 1)."""


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a connection that the listener knows."""

    address: str = ""
    """The source address, for the error that names it."""
    trusted_proxy: bool = False
    """True for a configured proxy, which must name its machine by signed headers (section 10)."""
    without_header: bool = False
    """True if `Metadata: true` may be missing: the peer is a proxy that is known to drop it."""
    vm_paths: bool = False
    """True if `/vm/NAME/metadata/...` is served: loopback listeners only (section 10)."""


CallerHint: TypeAlias = str | Claim | None
"""The caller by the request itself: the name in a `/vm/NAME` prefix, or a trusted proxy's claim."""


class GetDocument(msgspec.Struct, frozen=True, kw_only=True):
    """GET /metadata/scheduledevents."""

    version: Version
    if_none_match: IfNoneMatch = IfNoneMatch()
    wait_seconds: int = 0
    """The time that the answer may be held; 0 without an entity tag to compare with."""
    machine: CallerHint = None
    agent: AgentReport | None = None
    """The agent's report of the machine (section 10); None without one."""


class PostApproval(msgspec.Struct, frozen=True, kw_only=True):
    """POST /metadata/scheduledevents."""

    version: Version
    machine: CallerHint = None


class GetInstance(msgspec.Struct, frozen=True, kw_only=True):
    """GET /metadata/instance, all or a part of it."""

    version: str
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
_INSTANCE_VERSIONS: Final = frozenset(instance.INSTANCE_VERSIONS)
_FORMATS: Final[dict[str, Literal["json", "text"]]] = {"json": "json", "text": "text"}
_JSON: Final = (b"Content-Type", b"application/json; charset=utf-8")
_TEXT: Final = (b"Content-Type", b"text/plain; charset=utf-8")


def _wrong_version(known: Sequence[str]) -> Reply:
    newest = tuple(known[: -refusals.NEWEST_NAMED - 1 : -1])
    body = codec.encode_error(refusals.VERSION.text, newest)
    return Reply(refusals.VERSION.status, body, (_JSON,))


_WRONG_VERSION: Final = _wrong_version(list(VERSION_BY_NAME))
_WRONG_INSTANCE_VERSION: Final = _wrong_version(instance.INSTANCE_VERSIONS)
_NO_VERSION: Final = _wrong_version(())
"""For `/`, where no list of versions is in question."""


def judge(request: HttpRequest, peer: Peer, rules: Rules) -> Reply | ValidRequest:
    """Judge everything that the request alone shows, in the order of section 3, rule 6."""
    asked = read_target(request.target)
    if asked is None or (asked.machine is not None and not peer.vm_paths):
        return refuse(refusals.NOT_FOUND)
    if (refused := _refused_method(request, asked)) is not None:
        return refused
    read = read_headers(request.headers)
    hint: CallerHint = asked.machine
    if peer.trusted_proxy:
        if (hint := claim(read.identity)) is None:
            return refuse(refusals.UNSIGNED)
    elif (wrong := _not_from_a_guest(read, peer)) is not None:
        return refuse(wrong)
    has_header = read.metadata or peer.without_header
    if not has_header and not _needs_no_header(request.method, asked, rules):
        is_identity = asked.resource is Resource.IDENTITY
        return refuse(refusals.NO_IDENTITY_HEADER if is_identity else refusals.NO_HEADER)
    if asked.doubled is not None:
        return refuse(refusals.DOUBLED_PARAMETER, name=asked.doubled)
    return _wanted(request.method, asked, read, hint)


def _refused_method(request: HttpRequest, asked: Target) -> Reply | None:
    """Refuse another method than those of the resource, and a load balancer's path."""
    methods = _EVENTS_METHODS if asked.resource is Resource.EVENTS else _NEIGHBOURS_METHODS
    has_path = asked.resource is Resource.LOAD_BALANCER and bool(asked.below)
    if request.method in methods and not has_path:
        return None
    allow = () if has_path else ((b"Allow", b", ".join(methods)),)
    if asked.resource is not Resource.LOAD_BALANCER:
        return refuse(refusals.METHOD, *allow)
    refusal = refusals.NO_LOAD_BALANCER_PATH if has_path else refusals.LOAD_BALANCER_METHOD
    path = "/".join(("/metadata/loadbalancer", *asked.below))
    return refuse(refusal, *allow, path=path, method=request.method.decode("ascii", "replace"))


def _not_from_a_guest(read: RequestHeaders, peer: Peer) -> Refusal | None:
    """Refuse what a browser, or a proxy that is not a trusted one, has sent (rule 2)."""
    if peer.vm_paths and (read.origin or not is_own_host(read.host)):
        return refusals.WEB_PAGE
    if read.forwarded:
        return refusals.FORWARDED
    return refusals.NO_TRUSTED_PROXY if read.identity else None


def _needs_no_header(method: bytes, asked: Target, rules: Rules) -> bool:
    """Return True if this POST may lack `Metadata: true` (section 3, rule 1)."""
    if method != b"POST" or rules.post_without_header == "never":
        return False
    version = VERSION_BY_NAME.get(asked.api_version or "")
    if version is None:
        return False
    return rules.post_without_header == "always" or not version.header_required_on_post


def _wanted(
    method: bytes, asked: Target, read: RequestHeaders, hint: CallerHint
) -> Reply | ValidRequest:
    """Judge the part that depends on the resource: the version, and the other parameters."""
    match asked.resource:
        case Resource.EVENTS:
            return _events_request(method, asked, read, hint)
        case Resource.VERSIONS:
            return GetVersions(machine=hint)
        case Resource.IDENTITY:
            return refuse(refusals.NO_IDENTITY)
        case Resource.ROOT:
            return _NO_VERSION
        case _ if (version := asked.api_version) not in _INSTANCE_VERSIONS:
            return _WRONG_INSTANCE_VERSION
        case Resource.INSTANCE:
            return _instance_request(version, asked, hint)
        case Resource.LOAD_BALANCER:
            return refuse(refusals.NO_LOAD_BALANCER)
        case Resource.METADATA:
            return refuse(refusals.NOT_FOUND)


def _events_request(
    method: bytes, asked: Target, read: RequestHeaders, hint: CallerHint
) -> Reply | ValidRequest:
    version = VERSION_BY_NAME.get(asked.api_version or "")
    if version is None:
        return _WRONG_VERSION
    if method == b"POST":
        return PostApproval(version=version, machine=hint)
    tags = if_none_match(read.tags)
    waits = bool(tags.tags) and not tags.anything
    return GetDocument(
        version=version,
        if_none_match=tags,
        wait_seconds=wait_seconds(read.preferences) if waits else 0,
        machine=hint,
        agent=read.agent,
    )


def _instance_request(version: str, asked: Target, hint: CallerHint) -> Reply | ValidRequest:
    form = "json" if asked.format is None else asked.format
    if (known := _FORMATS.get(ascii_lower(form))) is None:
        return refuse(refusals.FORMAT, format=form)
    return GetInstance(version=version, path=asked.below, format=known, machine=hint)


def is_rated(wanted: ValidRequest) -> bool:
    """Return True if the rate may refuse this: anything but an approval (section 9)."""
    return not isinstance(wanted, PostApproval)


def hold_seconds(wanted: GetDocument, incarnation: int) -> int:
    """Return the time to hold the answer until a change of the document; 0 to answer now.

    It is held for a client that already has this document and asked to wait, and for one that has
    read a later one: a client that follows its machine to another replica must not read backwards.
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


VERSIONS_REPLY: Final = Reply(200, codec.encode_versions(instance.INSTANCE_VERSIONS), (_JSON,))
"""The answer to /metadata/versions: the instance service's versions [O]."""

APPROVED: Final = Reply(200, b"", (_TEXT,))
"""The answer to a stored approval: an empty body, since clients parse any other as JSON. It has a
type, without which OpenStack's metadata agent answers 500 to the guest."""


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
    address = address.partition("%")[0]  # its zone is the name of the host's interface
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
    safe = {name: shown(str(fact)) for name, fact in facts.items()}
    text = refusal.text.format(**safe)
    if refusal.is_plain:
        return Reply(refusal.status, text.encode(), (_TEXT, *headers))
    body = codec.encode_error(text, code=refusal.code)
    return Reply(refusal.status, body, (_JSON, *headers))
