"""The API's page speaks of every route and every code, and of nothing else; answers as JSON."""

import asyncio
import re
from pathlib import Path

from starlette.requests import Request

from forewarn.server.operator import errors, openapi, schemas, table
from server.running import roles

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "api.md"


def test_every_route_has_its_heading() -> None:
    headings = re.findall(r"^### `(\w+ \S+)`$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    routes = roles(table.API.routes)
    assert sorted(headings) == sorted(routes)


def test_every_code_is_told_with_its_status() -> None:
    told = re.findall(r"^\| `([a-z-]+)` \| (\d+)", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert dict(told) == {str(code): str(status) for code, status in errors.STATUS.items()}


def test_the_schema_is_made_once() -> None:
    assert openapi.document() is openapi.document()


def test_an_answer_is_json_before_the_loop_has_it() -> None:
    routes = table.RouteTable()

    @routes.route("GET", "/", None)
    async def list_holds() -> schemas.HoldList:
        return schemas.HoldList(holds=())

    request = Request({"type": "http", "query_string": b"", "path_params": {}, "headers": []})
    answer = asyncio.run(table.answer(routes.routes[0], request))
    assert answer.body == b'{"holds":[]}'
