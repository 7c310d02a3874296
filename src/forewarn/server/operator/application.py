"""The operators' API and the page, as one application."""

from typing import Any, Final, cast

from litestar import Litestar, Request, Response
from litestar.di import Provide
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.spec import Components, OpenAPIType, Schema, SecurityScheme, Tag
from litestar.plugins import OpenAPISchemaPlugin
from litestar.typing import FieldDefinition

from forewarn.control.accounts import OperatorRequest
from forewarn.server.operator import (
    account_routes,
    api,
    auth,
    errors,
    requests,
    roles,
    rollout_routes,
    routing,
    stream,
    webhook_routes,
)
from forewarn.server.operator.requests import Backend, SchemaCreator
from forewarn.server.page import (
    history,
    machines,
    maintenance,
    operation_routes,
    rollouts,
    routes,
    sending,
)
from forewarn.version import __version__

ROUTES: Final = tuple(
    each
    for each in [
        *vars(api).values(),
        *vars(account_routes).values(),
        *vars(rollout_routes).values(),
        *vars(stream).values(),
        *vars(webhook_routes).values(),
    ]
    if isinstance(each, HTTPRouteHandler)
)
"""The API's routes."""

OF_PAGE: Final = (
    *routes.ROUTES,
    *operation_routes.ROUTES,
    *machines.ROUTES,
    *maintenance.ROUTES,
    *rollouts.ROUTES,
    *history.ROUTES,
    *sending.ROUTES,
)
"""The page's."""


class _Tuples(OpenAPISchemaPlugin):
    """Describes `tuple[X, ...]` as an array of X.

    Litestar takes the ellipsis of a tuple with bounds for a second type, which any value matches,
    so that its schema refuses every element.
    """

    @staticmethod
    def is_plugin_supported_type(value: object) -> bool:
        """Return False: `is_plugin_supported_field` decides."""
        del value
        return False

    def is_plugin_supported_field(self, field_definition: FieldDefinition) -> bool:
        """Tell whether a field is a tuple of any length."""
        return field_definition.origin is tuple and field_definition.args[-1:] == (...,)

    def to_openapi_schema(
        self, field_definition: FieldDefinition, schema_creator: SchemaCreator
    ) -> Schema:
        """Return an array; its bounds are added by the caller."""
        items = schema_creator.for_field_definition(field_definition.inner_types[0])
        return Schema(type=OpenAPIType.ARRAY, items=items)


def application(backend: Backend, page: "routes.PageContext | None" = None) -> Litestar:
    """Return the API, and the page if there is one; `auth.Gate` stands before both."""

    def the_backend() -> Backend:
        return backend

    def the_caller(request: Request[Any, Any, Any]) -> OperatorRequest:
        return auth.request_of(cast("dict[str, Any]", request.scope))

    def the_page() -> "routes.PageContext | None":
        return page

    def answer(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
        told = errors.answer(request, error)
        if page is None or not auth.is_of_page(request.url.path):
            return told
        return routes.refuse(page, request, told)

    def begin(request: Request[Any, Any, Any]) -> None:
        if page is not None:
            page.begin(request)
        requests.judge_query(request)

    roles.check(ROUTES)
    roles.check(OF_PAGE, roles.OF_PAGE)
    return Litestar(
        [*ROUTES, *(OF_PAGE if page is not None else ())],
        dependencies={
            "page": Provide(the_page, sync_to_thread=False, use_cache=True),
            "backend": Provide(the_backend, sync_to_thread=False, use_cache=True),
            "caller": Provide(the_caller, sync_to_thread=False),
        },
        guards=[roles.judge],
        before_request=begin,
        exception_handlers={Exception: answer},
        request_max_body_size=requests.MAX_BODY,
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
            components=Components(
                security_schemes={
                    "token": SecurityScheme(
                        type="http",
                        scheme="bearer",
                        description="On TCP; on the unix socket the system says who asks.",
                    )
                }
            ),
            tags=[
                Tag(name=routing.FLEET, description="Machines, and the scopes that they share."),
                Tag(name=routing.MAINTENANCE, description="Maintenance and its history."),
                Tag(name=routing.HOSTS, description="Hosts, and their drains."),
                Tag(name=routing.ROLLOUTS, description="Maintenance of many units by a policy."),
                Tag(
                    name=routing.ACCOUNTS, description="Operators' tokens, and what operators did."
                ),
                Tag(name=routing.WEBHOOKS, description="Receivers of news, by HTTP."),
                Tag(name=routing.SERVICE, description="The service itself."),
            ],
        ),
    )


def _camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))
