"""What is around every page: its policy, keys, themes, sizes, and whom it lets in.

And what other pages have that only a browser shows.
"""

from pathlib import Path

import pytest
from playwright.sync_api import Page, Response

from forewarn.store import sqlite
from page.site import Site, follow
from server.running import Client, Running, request_reboot, settings_in


def test_what_a_page_loads_is_kept_by_the_browser_and_changes_its_address(busy: Site) -> None:
    window = busy.context().new_page()
    files: list[Response] = []

    def note(answer: Response) -> None:
        files.append(answer)

    window.on("response", note)
    window.goto(busy.link())
    window.wait_for_url(f"{busy.url}/")
    loaded = [each for each in files if "/page/static/" in each.url]
    assert len(loaded) >= 5
    assert all("immutable" in each.headers["cache-control"] for each in loaded)
    refused = Client(busy.url).ask("GET", "/page/static/forewarn-0000000000000000.css")
    assert refused.status == 404


def test_without_its_setting_there_is_no_page(tmp_path: Path) -> None:
    wanted = settings_in(tmp_path, listen="127.0.0.1:0", page=False)
    with Running(wanted, sqlite.open_store(Path(wanted.store.path))) as running:
        refused = running.client().ask("POST", "/v1/tokens/page", {})
        assert (refused.status, refused.error["code"]) == (409, "conflict")
        assert Client(running.opened.operators[1]).ask("GET", "/login").status == 401
        assert running.client().ask("GET", "/login").status == 404


SIZES = ((360, 800), (768, 1024), (1440, 1080))

PATHS = (
    *("/", "/machines", "/machines?scope=batch", "/machines?host=h1", "/machines/web-0"),
    *("/maintenance", "/maintenance/1", "/maintenance/3", "/maintenance/4", "/maintenance/new"),
    *("/operations/2.1", "/operations/3.1", "/history", "/audit"),
    *("/holds", "/hosts", "/hosts?q=h", "/tokens", "/orders/drain?reference=host%20h1"),
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


@pytest.fixture(scope="module")
def window(busy: Site) -> Page:
    return busy.window()


@pytest.mark.parametrize("path", PATHS)
def test_nothing_scrolls_sideways_and_orders_are_touched(
    busy: Site, window: Page, path: str
) -> None:
    answer = window.goto(busy.url + path)
    assert answer is not None
    assert answer.status == 200
    opened = "document.querySelectorAll('details').forEach((each) => { each.open = true; })"
    window.evaluate(opened)
    for width, height in SIZES:
        window.set_viewport_size({"width": width, "height": height})
        assert window.evaluate("innerWidth") == width
        assert window.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, width
        assert window.evaluate(WIDE_PARTS) == [], width
        assert window.evaluate(SMALL, THUMB) == [], width


def test_the_longest_names_fit_any_window(site: Site) -> None:
    name, scope, host = "m" * 80, "s" * 80, "h" * 200
    of_scope = {"name": scope, "machines": [{"name": name, "host": host}]}
    assert site.root.ask("PUT", "/v1/fleet", {"availability_set": [of_scope]}).status == 200
    hold = {"kind": "scope", "name": scope, "reason": "r" * 200}
    assert site.root.ask("POST", "/v1/holds", hold).status == 201
    asked = {"event_type": "Reboot", "hosts": [host], "policy": {}, "description": "d" * 400}
    assert site.root.ask("POST", "/v1/maintenances", asked).status == 201
    window = site.window()
    paths = ("/", "/machines", f"/machines/{name}", f"/machines?host={host}", "/maintenance")
    for path in (
        *paths,
        "/maintenance/1",
        "/holds",
        "/hosts",
        "/history",
        "/orders/cancel?reference=1",
    ):
        window.goto(site.url + path)
        for width, height in SIZES:
            window.set_viewport_size({"width": width, "height": height})
            beyond = window.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert beyond <= 0, (path, width)


def test_a_second_click_sends_nothing(site: Site) -> None:
    request_reboot(site.root)
    window = site.window(path="/maintenance/1")
    follow(window.get_by_role("link", name="Cancel 1.1"))
    sent: list[str] = []
    window.on("request", lambda request: sent.append(request.method))
    twice = "button => { button.click(); setTimeout(() => button.click()); }"
    with window.expect_navigation(url=f"{site.url}/maintenance/1"):
        window.get_by_role("button", name="Cancel 1.1").evaluate(twice)
    assert sent.count("POST") == 1


def test_what_was_stopped_on_its_way_is_sent_again(site: Site) -> None:
    window = site.window(path="/orders/hold?reference=everything")
    window.route("**/page/orders/hold", lambda _: None)
    browser = window.context.new_cdp_session(window)
    for _ in range(2):
        with window.expect_request("**/page/orders/hold"):
            window.get_by_role("button", name="Hold everything").click(no_wait_after=True)
        browser.send("Page.stopLoading")
    window.close()
    site.said.clear()  # of its stream, which was stopped too
