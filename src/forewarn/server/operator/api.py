"""The operators' API: its routes put together, and their OpenAPI schema.

docs/reference/api.md describes each route; a test compares.
"""

from typing import Any, Final

import msgspec
from litestar import Litestar, MediaType, Request, Response, get
from litestar.datastructures import State
from litestar.di import Provide
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.spec import Components, OpenAPIType, Schema, SecurityScheme, Tag
from litestar.plugins import OpenAPISchemaPlugin
from litestar.typing import FieldDefinition

from forewarn.server.operator import errors, requests, routes
from forewarn.server.operator.requests import Backend, SchemaCreator
from forewarn.version import __version__


@get("/v1/schema", tags=[routes.SERVICE], include_in_schema=False)
async def schema(request: Request[Any, Any, State]) -> Response[bytes]:
    """Return this API as OpenAPI, in JSON."""
    described = msgspec.json.encode(request.app.openapi_schema.to_schema())
    return Response(described, media_type=MediaType.JSON)


ROUTES: Final = (
    *(found for found in vars(routes).values() if isinstance(found, HTTPRouteHandler)),
    schema,
)


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


def application(backend: Backend) -> Litestar:
    """Return the API; `auth.Gate` stands before it."""

    def the_backend() -> Backend:
        return backend

    return Litestar(
        list(ROUTES),
        dependencies={"backend": Provide(the_backend, sync_to_thread=False, use_cache=True)},
        before_request=requests.judge_query,
        exception_handlers={Exception: errors.answer},
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
                        description="On TCP; the unix socket needs no authentication.",
                    )
                }
            ),
            tags=[
                Tag(name=routes.FLEET, description="Machines, and the scopes that they share."),
                Tag(name=routes.MAINTENANCE, description="Maintenance and its history."),
                Tag(name=routes.SERVICE, description="The service itself."),
            ],
        ),
    )


def _camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))
