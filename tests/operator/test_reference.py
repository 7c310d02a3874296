"""The API's page speaks of every route and every code, and of nothing else."""

import re
from pathlib import Path

from forewarn.server.operator import application, errors

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
