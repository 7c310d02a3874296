"""The operators' API and the page, as one application."""

import asyncio
import functools
import re
from types import ModuleType
from typing import Any, Final, cast

import msgspec
from litestar import Litestar, Request, Response
from litestar.di import Provide
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.spec import Components, OpenAPIType, Schema, SecurityScheme, Tag
from litestar.plugins import OpenAPISchemaPlugin
from litestar.typing import FieldDefinition

from forewarn.control.accounts import OperatorRequest
from forewarn.server.operator import administration, api, auth, errors, routing, stream
from forewarn.server.operator.routing import Backend, SchemaCreator
from forewarn.server.page import history, machines, maintenance, routes
from forewarn.version import __version__


def _routes(*modules: ModuleType) -> tuple[HTTPRouteHandler, ...]:
    found = (each for module in modules for each in vars(module).values())
    return tuple(each for each in found if isinstance(each, HTTPRouteHandler))


ROUTES: Final = _routes(api, administration, stream)
OF_PAGE: Final = _routes(routes, machines, maintenance, history)
"""The API's routes, and the page's."""

TOKEN: Final = SecurityScheme(
    type="http", scheme="bearer", description="On TCP; on the unix socket the system says who asks."
)


class _Tuples(OpenAPISchemaPlugin):
    """Describes `tuple[X, ...]` as an array of X.

    Litestar takes the ellipsis of a tuple with bounds for a second type, which any value matches,
    so that its schema refuses every element.
    """

    def is_plugin_supported_field(self, field_definition: FieldDefinition) -> bool:
        """Tell whether a field is a tuple of any length."""
        return field_definition.origin is tuple and field_definition.args[-1:] == (...,)

    def to_openapi_schema(
        self, field_definition: FieldDefinition, schema_creator: SchemaCreator
    ) -> Schema:
        """Return an array; its bounds are added by the caller."""
        items = schema_creator.for_field_definition(field_definition.inner_types[0])
        return Schema(type=OpenAPIType.ARRAY, items=items)


def application(backend: Backend, page: "routes.PageContext | None" = None) -> auth.Application:
    """Return the API, and the page if there is one; `auth.Gate` stands before both."""
    served: auth.Application = _served(with_page=page is not None)
    state = {"backend": backend, "page": page}
    return lambda scope, *more: served({**scope, "state": scope["state"] | state}, *more)


def _the_backend(request: Request[Any, Any, Any]) -> Backend:
    return cast("Backend", request.state.backend)


def _the_caller(request: Request[Any, Any, Any]) -> OperatorRequest:
    return auth.request_of(request.scope)


def _the_page(request: Request[Any, Any, Any]) -> "routes.PageContext | None":
    return cast("routes.PageContext | None", request.state.page)


def _answer(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    told, page = errors.answer(request, error), _the_page(request)
    if page is None or not auth.is_of_page(request.url.path):
        return told
    return routes.refuse(page, request, told)


def _begin(request: Request[Any, Any, Any]) -> None:
    if (page := _the_page(request)) is not None:
        page.begin(request)
    routing.restore_slashes(request)
    routing.judge_query(request)


async def _encode(answer: Response[Any]) -> Response[Any]:
    """Make an answer JSON on another thread: it may have a whole fleet, and the loop has guests."""
    if isinstance(answer.content, msgspec.Struct):
        answer.content = await asyncio.to_thread(msgspec.json.encode, answer.content)
    return answer


@functools.cache
def _served(*, with_page: bool) -> Litestar:
    """Return what all services of a process share: to register the routes takes 80 ms."""
    assert all(routing.NEEDS in route.opt for route in (*ROUTES, *OF_PAGE)), "give each a role"
    return Litestar(
        [*ROUTES, *(OF_PAGE if with_page else ())],
        dependencies={
            "page": Provide(_the_page, sync_to_thread=False),
            "backend": Provide(_the_backend, sync_to_thread=False),
            "caller": Provide(_the_caller, sync_to_thread=False),
        },
        guards=[routing.judge],
        before_request=_begin,
        after_request=_encode,
        exception_handlers={Exception: _answer},
        request_max_body_size=routing.MAX_BODY,
        logging_config=None,
        debug=False,
        plugins=[_Tuples()],
        openapi_config=OpenAPIConfig(
            title="Forewarn",
            version=__version__,
            description="Notice of maintenance for virtual machines: the operators' API. Every "
            "answer that is not a success has an ErrorBody.",
            path="/v1/openapi-unused",
            render_plugins=[],
            operation_id_creator=lambda handler, *_: _camel_case(handler.handler_name),
            security=[{}, {"token": []}],
            components=Components(security_schemes={"token": TOKEN}),
            tags=[
                Tag(routing.FLEET, "Machines, and the scopes that they share."),
                Tag(routing.MAINTENANCE, "Maintenance and its history."),
                Tag(routing.HOSTS, "Hosts, and their drains."),
                Tag(routing.ACCOUNTS, "Operators' tokens, and what operators did."),
                Tag(routing.WEBHOOKS, "Receivers of news, by HTTP."),
                Tag(routing.SERVICE, "The service itself."),
            ],
        ),
    )


def _camel_case(name: str) -> str:
    return re.sub("_(.)", lambda found: found[1].upper(), name)
