"""The API's OpenAPI document, made from its table of routes."""

import functools
import http
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from starlette.responses import Response

from forewarn.server.operator import table
from forewarn.server.operator.table import Route
from forewarn.version import __version__

TAGS: Final = {
    table.FLEET: "Machines, and the scopes that they share.",
    table.MAINTENANCE: "Maintenance and its history.",
    table.HOSTS: "Hosts, and their drains.",
    table.ACCOUNTS: "Operators' tokens, and what operators did.",
    table.WEBHOOKS: "Receivers of news, by HTTP.",
    table.SERVICE: "The service itself.",
}

Json = Mapping[str, Any]


@functools.cache
def document() -> bytes:
    """Return the document in JSON, and keep it."""
    routes = [route for route in table.API.routes if _types(route)[1] is not Response]
    kinds = list(dict.fromkeys(kind for route in routes for kind in _kinds(route)))
    shown, components = msgspec.json.schema_components(
        kinds, ref_template="#/components/schemas/{name}"
    )
    schemas = dict(zip(kinds, shown, strict=True))
    paths: dict[str, dict[str, Json]] = {}
    for route in routes:
        paths.setdefault(route.shown_path, {})[route.method.lower()] = _operation(route, schemas)
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "Forewarn",
                "version": __version__,
                "description": "Notice of maintenance for virtual machines: the operators' API. "
                "Every answer that is not a success has an ErrorBody.",
            },
            "servers": [{"url": "/"}],
            "security": [{}, {"token": []}],
            "tags": [{"name": name, "description": what} for name, what in TAGS.items()],
            "paths": paths,
            "components": {
                "schemas": components,
                "securitySchemes": {
                    "token": {
                        "type": "http",
                        "scheme": "bearer",
                        "description": "On TCP; on the unix socket the system says who asks.",
                    }
                },
            },
        }
    )


def _types(route: Route) -> tuple[Any, Any]:
    """Return the types of a route's body, None without one, and of its answer."""
    taken, answered = route.signature.parameters, route.signature.return_annotation
    data = taken["data"].annotation if "data" in taken else None
    return route.body or data, route.answer or answered


def _kinds(route: Route) -> list[Any]:
    errors = (kind for _, kind in route.errors.values())
    parameters = (each.annotation for each in route.asked.values())
    return [kind for kind in (*_types(route), *errors, *parameters) if kind is not None]


def _operation(route: Route, schemas: Mapping[Any, Json]) -> Json:
    def content(kind: Any) -> Json:  # noqa: ANN401 - a type
        return {"content": {"application/json": {"schema": schemas[kind]}}}

    body, answer = _types(route)
    success = http.HTTPStatus(route.status).description, answer
    answers = {route.status: success, **route.errors}.items()
    summary = (route.handler.__doc__ or "").partition("\n\n")[0]
    return {
        "tags": [route.tag],
        "summary": summary.rstrip("."),
        "operationId": re.sub("_(.)", lambda found: found[1].upper(), route.handler.__name__),
        "parameters": [
            {
                "name": field.encode_name,
                "in": "path" if f"{{{field.encode_name}}}" in route.shown_path else "query",
                "required": field.required,
                "schema": _with_default(schemas[route.asked[field.encode_name].annotation], field),
            }
            for field in msgspec.structs.fields(route.shape)
        ],
        "responses": {str(s): {"description": what, **content(k)} for s, (what, k) in answers},
        **({"requestBody": {**content(body), "required": True}} if body else {}),
    }


def _with_default(schema: Json, field: msgspec.structs.FieldInfo) -> Json:
    if field.required or field.default is None:
        return schema
    return {**schema, "default": msgspec.to_builtins(field.default)}
