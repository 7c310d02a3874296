"""The operators' API and the page, as one application on Starlette's router."""

import asyncio
import contextlib
import functools
import re
from collections.abc import Iterable, Mapping
from typing import Final, cast

from starlette.convertors import StringConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Router
from starlette.routing import Route as PathRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from forewarn.server.operator import administration, api, auth, errors, stream, table
from forewarn.server.operator.routing import Backend, OperatorCall
from forewarn.server.operator.table import Route
from forewarn.server.page import history, machines, maintenance, routes
from forewarn.store.port import OutcomeUnknown

MODULES: Final = (api, administration, stream, routes, machines, maintenance, history)
"""They fill the tables."""

STOPPING: Final = "the service is stopping and gave up the request, which may have been carried out"

LARGE_BYTES: Final = 256 * 1024
"""The most bytes of an answer to a GET that is sent whatever its account has not read yet. Longer
ones, up to a whole fleet, are sent one at a time of each account."""


class DigitsConvertor(StringConvertor):
    """A number of a path, still as text: Starlette's own fails at thousands of digits."""

    regex = "[0-9]+"


register_url_convertor("digits", DigitsConvertor())


class RoutedPath:
    """The methods of a path, as an ASGI application."""

    def __init__(self, methods: Mapping[str, Route]) -> None:
        self._methods = methods

    def __contains__(self, method: str) -> bool:
        """Tell whether it answers a method."""
        return method in self._methods

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request by its method."""
        request = _begun(scope, receive)
        response: Response | None = await self._answer(request)
        turn: contextlib.AbstractAsyncContextManager[object] = contextlib.nullcontext()
        if scope["method"] == "GET" and len(getattr(response, "body", b"")) > LARGE_BYTES:
            accounts, by = request.scope[table.BACKEND].accounts, auth.request_of(scope).by
            turn = unread = accounts.lock(by, "answer")
            if unread.locked():
                response = None  # made again then: those that wait keep no memory
        async with turn:
            if response is None and scope["state"][auth.LOST].done():
                return
            response = response or await self._answer(request)
            # Nobody is left to answer, or nobody reads it while the service stops.
            with contextlib.suppress(auth.ClientLeftError, asyncio.CancelledError):
                await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        try:
            return await self._made(request)
        except asyncio.CancelledError:  # by `connections.Server`, which waits no longer
            return _refuse(request, OutcomeUnknown(STOPPING))
        except Exception as error:  # noqa: BLE001 - each is answered, and logged if it is ours
            return _refuse(request, error)

    async def _made(self, request: Request) -> Response:
        route = self._methods.get(request.method)
        if route is not None:
            return await table.answer(route, request)
        allowed = {"Allow": ", ".join(sorted({*self._methods, "OPTIONS"}))}
        if request.method == "OPTIONS":
            return Response(status_code=204, headers=allowed)
        path = request.scope["path"].replace(auth.SLASH, "/")
        message = f"{path} does not support {request.method}"
        message += "" if auth.is_of_page(path) else ": /v1/schema lists the methods"
        raise HTTPException(405, message, allowed)


class OwnMethods(PathRoute):
    """A path that lets a later one answer other methods: a host may be called `drain`."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Tell whether it is the path of a request, in part if not by its method."""
        match, found = super().matches(scope)
        if match is Match.FULL and scope["method"] not in cast("RoutedPath", self.endpoint):
            return Match.PARTIAL, found
        return match, found


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    request, path = _begun(scope, receive), scope["path"].replace(auth.SLASH, "/")
    message = f"no such path {path}: /v1/schema lists them"
    if scope[table.PAGE_CONTEXT] is not None and auth.is_of_page(path):
        message = f"There is no page {path[:80]}."
    response = _refuse(request, HTTPException(404, message))
    await response(scope, receive, send)


def _begun(scope: Scope, receive: Receive) -> Request:
    """Return a request, with what handlers are given of it."""
    request = Request(scope, receive)
    scope[table.CALL] = OperatorCall(scope[table.BACKEND], auth.request_of(scope))
    context: routes.PageContext | None = scope[table.PAGE_CONTEXT]
    scope[table.PAGE_REQUEST] = context and routes.PageRequest(context, request)
    return request


def _refuse(request: Request, error: Exception) -> Response:
    refusal = errors.refusal(request, error)
    page: routes.PageRequest | None = request.scope[table.PAGE_REQUEST]
    if page is None or not auth.is_of_page(request.scope["path"]):
        return refusal.response()
    return page.refuse(refusal)


def application(
    backend: Backend,
    page: routes.PageContext | None = None,
    more: table.RouteTable | None = None,
) -> ASGIApp:
    """Return the API, with more routes, and the page if there is one; behind `AuthMiddleware`."""
    router = _router(more, with_page=page is not None)
    given = {table.BACKEND: backend, table.PAGE_CONTEXT: page}
    return lambda scope, *more: router({**scope, **given}, *more)


@functools.cache
def _router(more: table.RouteTable | None, *, with_page: bool) -> Router:
    added = [*(more.routes if more else ()), *(table.PAGE.routes if with_page else ())]
    return Router(
        list(_paths([*table.API.routes, *added])),
        redirect_slashes=False,
        default=_not_found,
    )


def _paths(listed: Iterable[Route]) -> Iterable[PathRoute]:
    by_path: dict[str, dict[str, Route]] = {}
    for route in listed:
        by_path.setdefault(route.path, {})[route.method] = route
    # Starlette takes the first that fits: `/v1/hosts/drain` before `/v1/hosts/{name}`.
    for path in sorted(by_path, key=lambda path: "{" in path):
        found = OwnMethods(path, RoutedPath(by_path[path]))
        # Starlette's `$` also fits before a newline at the end.
        found.path_regex = re.compile(found.path_regex.pattern.removesuffix("$") + r"\Z")
        yield found
