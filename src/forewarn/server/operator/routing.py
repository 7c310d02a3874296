"""How routes are declared: their place in the schema, their errors, and their bodies.

Each route also needs its role, in `roles`.
"""

from collections.abc import Callable
from typing import Annotated, Any, Final

import litestar
import msgspec
from litestar.handlers import HTTPRouteHandler
from litestar.params import QueryParameter

from forewarn.server.operator import schemas
from forewarn.server.operator.errors import RESPONSES
from forewarn.server.operator.requests import StrictBody

FLEET: Final = "fleet"
MAINTENANCE: Final = "maintenance"
HOSTS: Final = "hosts"
ROLLOUTS: Final = "rollouts"
ACCOUNTS: Final = "accounts"
WEBHOOKS: Final = "webhooks"
SERVICE: Final = "service"

MAX_LISTED: Final = 20
"""The most references or names in the audit log's detail."""

Limit = Annotated[int, QueryParameter(ge=1, le=schemas.MAX_LIMIT)]
Name = Annotated[str, QueryParameter(max_length=256)]
Names = Annotated[tuple[str, ...], QueryParameter(min_items=1, max_items=schemas.MAX_REMOVED)]

Decorator = Callable[[Callable[..., Any]], HTTPRouteHandler]


def get(path: str, tag: str = MAINTENANCE) -> Decorator:
    """Declare a route that changes nothing."""
    return litestar.get(path, tags=[tag], responses=RESPONSES)


def post(
    path: str, body: type[msgspec.Struct], tag: str = MAINTENANCE, status: int = 200
) -> Decorator:
    """Declare a route that takes a body."""
    dto: Any = StrictBody.__class_getitem__(body)
    return litestar.post(
        path, tags=[tag], responses=RESPONSES, status_code=status, dto=dto, return_dto=None
    )


def delete(path: str, tag: str = MAINTENANCE) -> Decorator:
    """Declare a route that removes what its query names."""
    return litestar.delete(path, tags=[tag], responses=RESPONSES, status_code=200)
