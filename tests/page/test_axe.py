"""No page has anything that axe-core, the judge of accessibility, finds wrong.

axe-core is neither shipped nor needed by the gate:

    npm install --prefix ~/.cache/forewarn axe-core

brings it; AXE names another file.
"""

import os
from pathlib import Path

import pytest
from playwright.sync_api import Page

from page.site import NARROW, WIDE, Site
from page.test_shell import PATHS

AXE = Path(os.environ.get("AXE", "~/.cache/forewarn/node_modules/axe-core/axe.min.js")).expanduser()

pytestmark = [
    pytest.mark.soak,  # axe-core is not among the packages of the gate
    pytest.mark.skipif(not AXE.exists(), reason=f"there is no axe-core at {AXE}"),
]

FOUND = """() => axe.run(document, {resultTypes: ["violations"]}).then((result) =>
    result.violations.flatMap((rule) => rule.nodes.map((node) =>
        `${rule.id}: ${node.target} ${node.html.slice(0, 120)}`)))"""


@pytest.fixture(
    scope="module",
    params=[(size, theme) for size in (NARROW, WIDE) for theme in ("light", "dark")],
    ids=lambda kind: f"{kind[0][0]}-{kind[1]}",
)
def window(busy: Site, request: pytest.FixtureRequest) -> Page:
    size, theme = request.param
    return busy.window(size=size, theme=theme)


@pytest.mark.parametrize("path", [*PATHS, "/login", "/nonsense"])
def test_nothing_is_wrong_by_axe(busy: Site, window: Page, path: str) -> None:
    with busy.complaints():
        window.goto(busy.url + path)
    # The debugger's protocol runs it: the page's policy would refuse a script of another place.
    window.evaluate(AXE.read_text(encoding="utf-8"))
    assert window.evaluate(FOUND) == []
