"""Which role each route needs. docs/reference/api.md shows the API's table; a test compares.

A route that is not in here keeps the service from starting: nobody can forget to give it a role.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeAlias, cast

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler

from forewarn.maintenance.model import Refused
from forewarn.server.operator import auth
from forewarn.vocabulary import AccessRole, ErrorCode

Table: TypeAlias = Mapping[str, AccessRole | None]

NEEDED: Final[Table] = MappingProxyType(
    {
        "GET /healthz": None,
        "GET /readyz": None,
        "GET /metrics": AccessRole.METRICS,
        "GET /v1/schema": AccessRole.VIEWER,
        "GET /v1/fleet": AccessRole.VIEWER,
        "GET /v1/fleet/machines": AccessRole.VIEWER,
        "GET /v1/fleet/machines/{name}": AccessRole.VIEWER,
        "GET /v1/fleet/scopes": AccessRole.VIEWER,
        "GET /v1/fleet/scopes/{name}": AccessRole.VIEWER,
        "GET /v1/fleet/tombstones": AccessRole.VIEWER,
        "GET /v1/maintenance": AccessRole.VIEWER,
        "GET /v1/maintenance/{number}": AccessRole.VIEWER,
        "GET /v1/events": AccessRole.VIEWER,
        "GET /v1/history": AccessRole.VIEWER,
        "GET /v1/stream": AccessRole.VIEWER,
        "GET /v1/holds": AccessRole.VIEWER,
        "GET /v1/rollouts": AccessRole.VIEWER,
        "GET /v1/rollouts/{number}": AccessRole.VIEWER,
        "GET /v1/alerts": AccessRole.VIEWER,
        "GET /v1/hosts": AccessRole.VIEWER,
        "GET /v1/hosts/{name}": AccessRole.VIEWER,
        "GET /v1/replicas": AccessRole.VIEWER,
        "GET /v1/clock": AccessRole.VIEWER,
        "POST /v1/logins": AccessRole.VIEWER,
        "GET /v1/webhooks": AccessRole.VIEWER,
        "PUT /v1/fleet": AccessRole.OPERATOR,
        "DELETE /v1/fleet/machines": AccessRole.OPERATOR,
        "POST /v1/maintenance": AccessRole.OPERATOR,
        "POST /v1/maintenance/{number}/resume": AccessRole.OPERATOR,
        "POST /v1/approvals": AccessRole.OPERATOR,
        "POST /v1/cancellations": AccessRole.OPERATOR,
        "POST /v1/postponements": AccessRole.OPERATOR,
        "POST /v1/holds": AccessRole.OPERATOR,
        "DELETE /v1/holds": AccessRole.OPERATOR,
        "POST /v1/acknowledgements": AccessRole.OPERATOR,
        "POST /v1/resolutions": AccessRole.OPERATOR,
        "POST /v1/rollouts": AccessRole.OPERATOR,
        "POST /v1/rollouts/{number}/orders": AccessRole.OPERATOR,
        "POST /v1/hosts/drain": AccessRole.OPERATOR,
        "POST /v1/hosts/{name}/orders": AccessRole.OPERATOR,
        "GET /v1/audit": AccessRole.OPERATOR,
        "POST /v1/webhooks/{name}/tests": AccessRole.OPERATOR,
        "POST /v1/webhooks": AccessRole.ADMIN,
        "DELETE /v1/webhooks": AccessRole.ADMIN,
        "POST /v1/clock": AccessRole.ADMIN,
        "POST /v1/relays/tokens": AccessRole.ADMIN,
        "DELETE /v1/relays/tokens": AccessRole.ADMIN,
        "GET /v1/tokens": AccessRole.ADMIN,
        "POST /v1/tokens": AccessRole.ADMIN,
        "DELETE /v1/tokens": AccessRole.ADMIN,
    }
)
"""By method and path; None is for everybody, without a token."""

OF_PAGE: Final[Table] = MappingProxyType(
    {
        "GET /login": None,
        "POST /login": None,
        "GET /page/static/{name}": None,
        "GET /": AccessRole.VIEWER,
        "GET /search": AccessRole.VIEWER,
        "GET /operations/{reference}": AccessRole.VIEWER,
        "GET /machines": AccessRole.VIEWER,
        "GET /machines/{name}": AccessRole.VIEWER,
        "GET /machines/{name}/document": AccessRole.VIEWER,
        "GET /maintenance": AccessRole.VIEWER,
        "GET /maintenance/{number}": AccessRole.VIEWER,
        "GET /rollouts": AccessRole.VIEWER,
        "GET /rollouts/{number}": AccessRole.VIEWER,
        "GET /history": AccessRole.VIEWER,
        "GET /maintenance/new": AccessRole.OPERATOR,
        "POST /page/maintenance": AccessRole.OPERATOR,
        "GET /rollouts/new": AccessRole.OPERATOR,
        "POST /page/rollouts": AccessRole.OPERATOR,
        "GET /orders/{order}": AccessRole.OPERATOR,
        "POST /page/orders/{order}": AccessRole.OPERATOR,
        "GET /audit": AccessRole.OPERATOR,
        "GET /page/stream": AccessRole.VIEWER,
        "POST /logout": AccessRole.VIEWER,
    }
)
"""The same of the page for browsers, which no other program should use."""


def route_of(handler: HTTPRouteHandler) -> str:
    """Return a handler's method and path, as the table has them."""
    (method,) = handler.http_methods
    (path,) = handler.paths
    # Litestar writes a path's parameters as {name:str}.
    parts = (part.partition(":")[0] + "}" if ":" in part else part for part in path.split("/"))
    return f"{method} {'/'.join(parts)}"


def check(handlers: Iterable[HTTPRouteHandler], table: Table = NEEDED) -> None:
    """Assert that the table has each route, and no other."""
    routes = {route_of(handler) for handler in handlers}
    assert routes == table.keys(), f"give each route a role: {routes ^ table.keys()}"


def judge(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Refuse (FORBIDDEN) a request whose account's role does not allow it: a guard of Litestar's.

    `auth.Gate` has found out whose request it is.
    """
    if not isinstance(handler, HTTPRouteHandler) or "OPTIONS" in handler.http_methods:
        return
    route = route_of(handler)
    needed = OF_PAGE[route] if route in OF_PAGE else NEEDED[route]
    request = auth.request_of(cast("dict[str, Any]", connection.scope))
    if needed is None or (request.role is not None and request.role.allows(needed)):
        return
    message = (
        f"{request.by} has the role {request.role}, which does not allow this: it needs "
        f"{needed} (see docs/reference/api.md, Roles)"
    )
    raise Refused(ErrorCode.FORBIDDEN, message, role=str(request.role), needed=needed.value)
