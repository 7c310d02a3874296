"""The tables of routes: how a route is declared, and how a request of it is read and answered.

A route is a plain async function. Its parameters are what it is given: `request`, `backend`, `call`
and `page`; `data`, the body; the names in its path; all others are the query. They are read by
msgspec as their annotations say. docs/reference/api.md has the table of roles, and a test compares.
"""

import asyncio
import functools
import inspect
import typing
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final, TypeVar

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from forewarn import settings
from forewarn.maintenance.model import Refused
from forewarn.server.operator import auth, errors
from forewarn.vocabulary import AccessRole, ErrorCode

Handler = TypeVar("Handler", bound=Callable[..., Awaitable[Any]])
Shape = TypeVar("Shape", bound=msgspec.Struct)

MAX_BODY: Final = 1024 * 1024
"""The most bytes of a body that is not a fleet: ten thousand names fit."""

BODY_SECONDS: Final = 120.0
"""The time for a whole body: a fleet of 64 MiB at 5 Mbit/s."""

JSON: Final = "application/json"
FORM: Final = "application/x-www-form-urlencoded"

FLEET: Final = "fleet"
MAINTENANCE: Final = "maintenance"
HOSTS: Final = "hosts"
ACCOUNTS: Final = "accounts"
WEBHOOKS: Final = "webhooks"
SERVICE: Final = "service"

GIVEN: Final = frozenset({"request", "backend", "call", "page", "data"})
"""The parameters of handlers that are neither in the path nor in the query."""

BACKEND: Final = "forewarn.backend"
CALL: Final = "forewarn.call"
PAGE_CONTEXT: Final = "forewarn.page"
PAGE_REQUEST: Final = "forewarn.page_request"
"""The keys in a request's ASGI scope of the rooms below, of these with the request's caller, of the
page, and of a request of it."""

IN_SCOPE: Final = {"backend": BACKEND, "call": CALL, "page": PAGE_REQUEST}
"""The keys of what handlers are given, by the names of their parameters."""

NAME: Final = "name"
"""The key in `msgspec.Meta.extra` of a parameter's name in the query, where Python's differs."""


class Route(msgspec.Struct, frozen=True, dict=True):
    """A method of a path."""

    handler: Callable[..., Awaitable[Any]]
    method: str
    path: str
    """With its parameters as Starlette has them: `{name}`, `{number:digits}`."""
    needs: AccessRole | None
    """The role that it needs; None where nobody needs a token."""
    tag: str = MAINTENANCE
    body: Any = None
    """The type of a body, where the handler takes its bytes."""
    answer: Any = None
    """The type of the answer, where the handler returns a `Response`: if it has none, such as a
    stream, it is not in the OpenAPI document."""
    status: int = 200
    """The status of an answer that is a success."""
    errors: Mapping[int, tuple[str, Any]] = msgspec.field(default_factory=lambda: errors.RESPONSES)
    """The other statuses that it answers with: a description, and the type of the answer."""
    max_body: int = MAX_BODY

    @functools.cached_property
    def signature(self) -> inspect.Signature:
        """The signature of its handler, with its annotations as types."""
        return inspect.signature(self.handler, eval_str=True)

    @functools.cached_property
    def asked(self) -> dict[str, inspect.Parameter]:
        """The handler's parameters in the path and the query, by their names there."""
        found = (each for each in self.signature.parameters.values() if each.name not in GIVEN)
        return {_name_of(each): each for each in found}

    @functools.cached_property
    def shape(self) -> type[msgspec.Struct]:
        """The path and the query, as msgspec reads them."""
        fields = [(each.name, each.annotation, *_default(each)) for each in self.asked.values()]
        names = {each.name: name for name, each in self.asked.items()}
        return msgspec.defstruct(self.handler.__name__, fields, rename=names, kw_only=True)

    def admit(self, request: Request) -> None:
        """Refuse (FORBIDDEN) a request whose account's role does not allow it."""
        if self.needs is not None:
            auth.require(auth.request_of(request.scope), self.needs)

    def given(self, request: Request) -> dict[str, Any]:
        """Return the arguments of the handler beside the path, the query and the body."""
        found = {"request": request} | {
            name: request.scope.get(key) for name, key in IN_SCOPE.items()
        }
        return {name: found[name] for name in found.keys() & self.signature.parameters.keys()}

    @property
    def shown_path(self) -> str:
        """The path as the reference and the OpenAPI document have it."""
        return self.path.replace(":digits}", "}")


class RouteTable:
    """Routes, in the order of their declarations."""

    def __init__(self) -> None:
        self.routes: list[Route] = []

    def route(
        self,
        *its: Any,  # noqa: ANN401 - the fields of `Route`
        **more: Any,  # noqa: ANN401 - the same
    ) -> Callable[[Handler], Handler]:
        """Declare a route, by the fields of `Route`; the handler stays a plain function.

        One with a dry run needs the role of a viewer: `OperatorCall.changing` judges the others.
        """

        def declare(handler: Handler) -> Handler:
            self.routes.append(Route(handler, *its, **more))
            return handler

        return declare

    async def call(
        self,
        handler: Callable[..., Awaitable[Shape]],
        request: Request,
        asked: Mapping[str, object],
    ) -> Shape:
        """Call a handler for another request: with its parameters, and the rest as its body.

        None stands for what is left out. Refused if the caller's role does not allow it (FORBIDDEN)
        or, with the place, if a value is wrong (INVALID).
        """
        route = next(route for route in self.routes if route.handler is handler)
        route.admit(request)
        given = {name: value for name, value in asked.items() if value is not None}
        parameters = {name: given.pop(name) for name in given.keys() & route.asked.keys()}
        arguments = msgspec.structs.asdict(converted(parameters, route.shape))
        arguments |= route.given(request)
        if (data := route.signature.parameters.get("data")) is not None:
            arguments["data"] = converted(given, data.annotation)
        return await handler(**arguments)


API: Final = RouteTable()
PAGE: Final = RouteTable()
"""The API's routes, and the page's."""


def _name_of(parameter: inspect.Parameter) -> str:
    notes = getattr(parameter.annotation, "__metadata__", ())
    return next((note.extra[NAME] for note in notes if note.extra), parameter.name)


def _default(parameter: inspect.Parameter) -> tuple[Any, ...]:
    return () if parameter.default is parameter.empty else (parameter.default,)


def _takes_several(kind: Any) -> bool:  # noqa: ANN401 - a type
    bare = typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind
    return typing.get_origin(bare) is tuple


async def answer(route: Route, request: Request) -> Response:
    """Judge a request by its role, read it, call its handler, and return the answer."""
    if auth.REQUEST in request.scope:
        auth.request_of(request.scope).deed = route.handler.__name__
    route.admit(request)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    expected = FORM if auth.is_of_page(route.path) else JSON
    if route.method in auth.WITH_BODY and kind != expected:
        raise HTTPException(415, f"expected 'Content-Type: {expected}'")
    if route.max_body <= MAX_BODY:
        return await _admitted(route, request)
    # One at a time of each account: several fleets of 64 MiB at once take the memory of guests.
    accounts, by = request.scope[BACKEND].accounts, auth.request_of(request.scope).by
    async with accounts.lock(by, "body"):
        return await _admitted(route, request)


async def _admitted(route: Route, request: Request) -> Response:
    arguments = msgspec.structs.asdict(in_utc(read_parameters(route, request)))
    arguments |= route.given(request)
    if (data := route.signature.parameters.get("data")) is not None:
        body = await read_body(request, route.max_body)
        if not body:
            message = "the body is empty: expected JSON; /v1/schema describes it"
            raise Refused(ErrorCode.INVALID, message)
        arguments["data"] = body if route.body else in_utc(decoded(body, data.annotation))
    answered = await route.handler(**arguments)
    if isinstance(answered, Response):
        return answered
    # On another thread: it may have a whole fleet, and the loop has guests.
    made: Response = await request.scope[BACKEND].beside(errors.as_json, answered, route.status)
    return made


def read_parameters(route: Route, request: Request) -> msgspec.Struct:
    """Return the parameters in the path and the query.

    A parameter that the route does not know, or that is repeated, is refused: a mistyped `dry_run`
    must not carry out what it was meant to try.
    """
    in_path = request.path_params
    values: dict[str, Any] = {
        # The slashes that `auth.AuthMiddleware` kept from being borders.
        name: value.replace(auth.SLASH, "/") if isinstance(value, str) else value
        for name, value in in_path.items()
    }
    query = request.query_params
    known = route.asked.keys() - in_path.keys()
    for name, times in Counter(name for name, _ in query.multi_items()).items():
        if name not in known:
            message = f"unknown parameter {name[:80]!r}{settings.suggestion(name, sorted(known))}"
            raise Refused(ErrorCode.INVALID, message, parameter=name)
        several = _takes_several(route.asked[name].annotation)
        if times > 1 and not several:
            message = f"parameter {name!r} was given {times} times, expected once"
            raise Refused(ErrorCode.INVALID, message, parameter=name)
        values[name] = query.getlist(name) if several else query[name]
    for name, each in route.asked.items():
        if each.default is each.empty and name not in values:
            raise Refused(ErrorCode.INVALID, f"missing parameter {name!r}", parameter=name)
    try:
        found = msgspec.convert(values, route.shape, strict=False)
    except msgspec.ValidationError as error:
        mistake = settings.explain(error, route.shape)
        name = mistake.where.partition("[")[0]
        given = values[name]
        shown = ", ".join(map(repr, given if isinstance(given, list) else [str(given)]))
        message = f"at {name}: {mistake.what}, got {shown[: errors.MAX_SHOWN]}"
        raise Refused(ErrorCode.INVALID, message, parameter=name) from error
    for field in msgspec.structs.fields(route.shape):
        name, value = field.encode_name, getattr(found, field.name)
        # msgspec takes a number, such as a year, for the seconds since 1970.
        if isinstance(value, datetime) and ":" not in (given := values[name]):
            message = f"at {name}: expected RFC 3339, such as 2026-11-22T22:00:00Z, got {given!r}"
            raise Refused(ErrorCode.INVALID, message, parameter=name)
    return found


async def read_body(request: Request, most: int = MAX_BODY, seconds: float = BODY_SECONDS) -> bytes:
    """Return a body; a longer one is refused (413) before it is read, or as soon as it shows.

    One that takes too long is refused (408): a sender that stands still keeps nothing of others.
    """
    length = request.headers.get("content-length", "0")
    chunks, size = list[bytes](), 0
    too_long = HTTPException(413, f"the body is longer than {most} bytes")
    if int(length) > most:
        raise too_long
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                chunks.append(chunk)
                size += len(chunk)
                if size > most:
                    raise too_long
    except TimeoutError:
        raise HTTPException(408, f"the body took longer than {seconds:g} s") from None
    return b"".join(chunks)


def decoded(body: bytes, shape: type[Shape]) -> Shape:
    """Return a JSON body as a struct; Refused (INVALID), with the place, where it is not one."""
    try:
        return msgspec.json.decode(body, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise errors.invalid_body(error, shape) from error


def in_utc(value: Any, where: str = "") -> Any:  # noqa: ANN401 - a part of a request
    """Return a part of a request with its times in UTC; INVALID for one outside UTC's years."""
    if isinstance(value, msgspec.Struct):
        fields = msgspec.structs.asdict(value).items()
        return msgspec.structs.replace(value, **{name: in_utc(each, name) for name, each in fields})
    if isinstance(value, tuple):
        return tuple(in_utc(each, where) for each in value)
    if not isinstance(value, datetime):
        return value
    try:
        return value.astimezone(UTC)
    except OverflowError as error:
        message = f"at {where}: {value.isoformat()} is before the year 1 or after 9999 in UTC"
        raise Refused(ErrorCode.INVALID, message, where=where) from error


def converted(asked: Mapping[str, object], shape: type[Shape]) -> Shape:
    """Return values as a struct; Refused (INVALID), with the place, where one is wrong."""
    try:
        return msgspec.convert(asked, shape)
    except msgspec.ValidationError as error:
        raise errors.invalid_body(error, shape) from error
