"""Every page at three widths: nothing scrolls sideways, and a thumb meets every order."""

import pytest
from playwright.sync_api import Page, expect

from page.site import Site

SIZES = ((360, 800), (768, 1024), (1440, 1080))

PATHS = (
    *("/", "/machines", "/machines?scope=batch", "/machines?host=h1", "/machines/web-0"),
    *("/maintenance", "/maintenance/1", "/maintenance/3", "/maintenance/4", "/maintenance/new"),
    *("/operations/2.1", "/operations/3.1", "/history", "/audit"),
    *("/holds", "/hosts", "/tokens", "/orders/drain?reference=host%20h1"),
    *("/orders/cancel?reference=2.1", "/orders/retry?reference=1&unit=FrontEnd_IN_0"),
    *("/orders/hold?reference=scope%20web", "/orders/postpone?reference=2.1"),
)

THUMB = 40

SMALL = """(least) => [...document.querySelectorAll(
    "button, .button, select, summary, .pages a, .ranges a, .choices a, " +
    "input:not([type=checkbox], [type=hidden]), label:has(input)"
  )]
  .filter((each) => each.checkVisibility())
  .map((each) => [each, each.getBoundingClientRect()])
  .filter(([each, box]) => box.height < least || box.left < 0 || box.right > innerWidth)
  .map(([each, box]) => `${each.outerHTML.slice(0, 90)} ${Math.round(box.height)} px`)"""
"""What can be touched and is lower than a thumb, or beyond an edge of the window."""

WIDE_PARTS = """() => [...document.querySelectorAll("main *:not(pre, pre *, textarea, svg *)")]
  .filter((each) => each.checkVisibility() && getComputedStyle(each).overflowX !== "visible")
  .filter((each) => each.scrollWidth > each.clientWidth + 1 && !each.matches(".sr-only, .domain"))
  .map((each) => each.outerHTML.slice(0, 90))"""
"""Parts of a page that have more than they show at once; documents are code, and may."""


@pytest.fixture(scope="module", params=SIZES, ids=lambda size: str(size[0]))
def window(busy: Site, request: pytest.FixtureRequest) -> Page:
    return busy.window(size=request.param)


@pytest.mark.parametrize("path", PATHS)
def test_nothing_scrolls_sideways_and_every_order_can_be_touched(
    busy: Site, window: Page, path: str
) -> None:
    answer = window.goto(busy.url + path)
    assert answer is not None
    assert answer.status == 200
    opened = "document.querySelectorAll('details').forEach((each) => { each.open = true; })"
    window.evaluate(opened)
    assert window.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert window.evaluate(WIDE_PARTS) == []
    assert window.evaluate(SMALL, THUMB) == []


def test_on_a_telephone_a_row_is_a_card_with_its_name_status_and_orders_first(busy: Site) -> None:
    window = busy.window(size=(390, 844), path="/maintenance/4")
    row = window.locator("tr", has_text="host h2").first
    order = """(row) => [...row.cells].map((each) => each.getBoundingClientRect())
        .filter((box) => box.width)
        .map((box) => [Math.round(box.top / 20), Math.round(box.left)])"""
    places = row.evaluate(order)
    assert places == sorted(places)
    expect(row.locator("td").first).to_have_class("name")
    expect(row.locator("td.orders .button")).to_have_count(1)


def test_the_lanes_of_a_telephone_carry_the_names_of_their_bars(busy: Site) -> None:
    window = busy.window(size=(390, 844))
    lane = window.locator(".timeline .domain", has_text="web-0")
    expect(lane).to_be_visible()
    expect(window.locator(".timeline .event text:visible")).to_have_count(0)
