"""The API's page speaks of every route and every code, and of nothing else; answers as JSON."""

import asyncio
import re
from pathlib import Path

from litestar import Response

from forewarn.server.operator import administration, application, errors, schemas

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "api.md"


def test_every_route_has_its_heading() -> None:
    headings = re.findall(r"^### `(\w+ \S+)`$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    routes = {
        f"{method} {re.sub(r':[a-z]+}', '}', path)}"
        for route in application.ROUTES
        for path in route.paths
        for method in route.http_methods
    }
    assert sorted(headings) == sorted(routes)


def test_every_code_is_told_with_its_status() -> None:
    told = re.findall(r"^\| `([a-z-]+)` \| (\d+)", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert dict(told) == {str(code): str(status) for code, status in errors.STATUS.items()}


def test_the_schema_is_made_once() -> None:
    app = application._served(with_page=False)
    assert administration._described(app) is administration._described(app)


def test_an_answer_is_json_before_the_loop_has_it() -> None:
    answer = asyncio.run(application._encode(Response(schemas.HoldList(holds=()))))
    assert answer.content == b'{"holds":[]}'
