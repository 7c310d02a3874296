"""The live stream in a browser, and a log-in: changes show by themselves."""

from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Route, expect

from forewarn.store import sqlite
from forewarn.vocabulary import AccessRole
from page.site import Chromium, Site
from ports import free_port
from server.running import Running, request_reboot, settings_in

LATE = """new Promise((done) => {
    const look = () => window.htmx ? setTimeout(done, 100) : setTimeout(look, 10);
    look();
})"""
"""Playwright's own waiting evaluates text again and again, which the page's policy refuses."""


def test_the_stream_opens_however_late_its_script_comes(site: Site) -> None:
    window = site.window()

    def come_late(route: Route) -> None:
        window.evaluate(LATE)
        route.continue_()

    window.route("**/hx-sse*", come_late)
    window.goto(site.url)
    expect(window.locator("#live")).to_have_attribute("data-state", "live")


PROXY: Final[dict[str, Any]] = {
    "status": 503,
    "content_type": "text/html",
    "body": "<p>a proxy</p>",
}


def test_the_page_of_a_proxy_without_the_service_stands_nowhere(site: Site) -> None:
    request_reboot(site.running.client())
    window = site.window()
    window.route("**/operations/1.1", lambda route: route.fulfill(**PROXY))
    bar, panel = window.locator("[data-opens='/operations/1.1']").first, window.locator("#panel")
    bar.click()
    expect(window.locator("#live")).to_have_attribute("data-state", "cut off")
    expect(panel).to_be_empty()
    window.unroute("**/operations/1.1")  # not before: each change asks for it again
    bar.click()
    expect(panel).to_be_visible()
    site.said.clear()


def test_a_page_that_gets_no_stream_says_so_and_asks_again(site: Site) -> None:
    window = site.window()
    window.route("**/page/stream*", lambda route: route.fulfill(**PROXY), times=1)
    window.reload()
    live = window.locator("#live")
    expect(live).to_have_attribute("data-state", "cut off")
    expect(live).to_have_text("cut off")
    window.evaluate("htmx.trigger('#live', 'every')")
    expect(live).to_have_attribute("data-state", "live")
    site.said.clear()


def test_a_page_outlives_a_restart_of_the_service(tmp_path: Path, chromium: Chromium) -> None:
    wanted = settings_in(tmp_path, listen=f"127.0.0.1:{free_port()}")
    with Running(wanted, sqlite.open_store(Path(wanted.store.path))) as running:
        site = Site(running, chromium)
        window = site.window()
        window.evaluate("window.before = true")
    live = window.locator("#live")
    expect(live).to_have_attribute("data-state", "cut off")
    word = window.locator("#live-word").bounding_box()
    assert word is not None
    assert word["width"] > 10  # for what is shown may be old by now
    with Running(wanted, sqlite.open_store(Path(wanted.store.path))) as running:
        request_reboot(running.client())
        expect(live).to_have_attribute("data-state", "live")
        expect(window.locator("main")).to_contain_text("1.1")
        assert window.evaluate("window.before")
        window.context.close()


def test_a_link_logs_in_whoever_asked_for_it(site: Site) -> None:
    window = site.context().new_page()
    asked: list[str] = []
    window.on("request", lambda request: asked.append(f"{request.url} {request.all_headers()}"))
    link = site.link(AccessRole.VIEWER)
    window.goto(link)
    window.wait_for_url(f"{site.url}/")
    secret = link.partition("#")[2]
    assert secret
    assert not [each for each in asked if secret in each.replace(link, "")]
    expect(window.locator("#live")).to_have_attribute("data-state", "live")
    expect(window.locator(".who")).to_contain_text("viewer")
    (cookie,) = window.context.cookies()
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Strict"
    assert cookie["value"] != secret
    window.go_back()
    assert secret not in window.url
