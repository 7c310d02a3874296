"""The live stream in a browser, and a log-in: changes show by themselves."""

from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Route, expect

import patience
from forewarn.cli import main
from forewarn.store import sqlite
from forewarn.store.sqlite import InMemoryStore
from forewarn.vocabulary import AccessRole
from page.site import Contexts, Site
from ports import free_port
from server.running import ME, Running, request_reboot, settings_in

CONNECTIONS = 6
"""How many a browser has to one origin by HTTP/1.1."""

HIDDEN = "Object.defineProperty(document, 'hidden', {get: () => !window.isShown})"
"""A browser that nobody sees calls each of its windows visible: so a script hides them."""

SHOW = "window.isShown = true; document.dispatchEvent(new Event('visibilitychange'))"


def test_what_changes_shows_without_a_reload_and_leaves_the_rest_as_it_was(site: Site) -> None:
    window = site.window(size=(1440, 300))
    window.evaluate("window.before = true")
    window.evaluate("scrollTo(0, 150)")  # at once: a wheel's turn goes on for a while
    window.locator("#search").focus()
    window.keyboard.type("web")
    scrolled = window.evaluate("scrollY")
    assert scrolled > 100
    request_reboot(site.root)
    expect(window.locator("main")).to_contain_text("1.1")
    assert window.evaluate("window.before")
    assert window.evaluate("scrollY") == scrolled
    expect(window.locator("#search")).to_be_focused()
    expect(window.locator("#search")).to_have_value("web")


def test_what_has_the_focus_within_the_part_that_changes_keeps_it(site: Site) -> None:
    window = site.window()
    range_link, timeline = window.locator(".ranges a", has_text="12 h"), window.locator(".timeline")
    range_link.focus()
    timeline.evaluate("each => each.before = true")
    request_reboot(site.root)
    expect(window.locator("main")).to_contain_text("1.1")
    expect(range_link).to_be_focused()
    assert timeline.evaluate("each => each.before")


def test_an_open_panel_stays_open_and_follows_too(site: Site) -> None:
    request_reboot(site.root)
    window = site.window()
    window.locator("main [data-opens='/operations/1.1']").first.click()
    panel = window.locator("#panel")
    expect(panel.get_by_role("link", name="Approve 1.1")).to_be_visible()
    site.root.ask("POST", "/v1/holds", {"kind": "everything"})
    expect(panel.locator(".state")).to_contain_text("held")
    site.root.ask("POST", "/v1/approvals", {"references": ["1.1"]})
    expect(panel.locator(".approved")).to_be_visible()
    expect(panel.get_by_role("link", name="Approve 1.1")).to_have_count(0)


def test_hidden_windows_leave_the_browsers_connections_to_those_in_view(site: Site) -> None:
    window = site.window()
    hidden = [window.context.new_page() for _ in range(CONNECTIONS)]
    for each in hidden:
        each.add_init_script(HIDDEN)
        each.goto(site.url)
        expect(each.locator("#live")).to_have_attribute("data-state", "connecting")
    request_reboot(site.root)
    expect(window.locator("main")).to_contain_text("1.1")
    hidden[0].evaluate("window.before = true")
    hidden[0].evaluate(SHOW)
    expect(hidden[0].locator("main")).to_contain_text("1.1")
    expect(hidden[0].locator("#live")).to_have_attribute("data-state", "live")
    assert hidden[0].evaluate("window.before")


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


def test_a_page_outlives_a_restart_of_the_service(tmp_path: Path, contexts: Contexts) -> None:
    wanted = settings_in(tmp_path, listen=f"127.0.0.1:{free_port()}")
    with Running(wanted, sqlite.open_store(Path(wanted.store.path))) as running:
        site = Site(running, contexts)
        window = site.window()
        window.evaluate("window.before = true")
    live = window.locator("#live")
    expect(live).to_have_attribute("data-state", "cut off")
    with Running(wanted, sqlite.open_store(Path(wanted.store.path))) as running:
        request_reboot(running.client())
        expect(live).to_have_attribute("data-state", "live")
        expect(window.locator("main")).to_contain_text("1.1")
        assert window.evaluate("window.before")
        window.context.close()


def test_a_page_whose_service_lost_its_database_leads_to_the_log_in(
    tmp_path: Path, contexts: Contexts
) -> None:
    wanted = settings_in(tmp_path, listen=f"127.0.0.1:{free_port()}")
    with Running(wanted, InMemoryStore()) as running:
        window = Site(running, contexts).window()
    expect(window.locator("#live")).to_have_attribute("data-state", "cut off")
    with Running(wanted, InMemoryStore()) as running:
        window.wait_for_url(f"{running.opened.operators[1]}/login")
        window.context.close()


def test_a_page_whose_token_ended_leads_to_the_log_in(site: Site) -> None:
    window = site.window(AccessRole.OPERATOR)
    with site.complaints():
        assert site.root.ask("DELETE", "/v1/tokens?name=operator").status == 200
        request_reboot(site.root)
        window.wait_for_url(f"{site.url}/login")


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


def test_logging_out_ends_the_token_for_the_service_too(site: Site) -> None:
    window = site.window()
    cookies = window.context.cookies()
    window.locator(".who summary").click()
    with site.complaints():  # of a request that was under way
        window.get_by_role("button", name="Log out").click()  # or the stream's end leads there
        window.wait_for_url(f"{site.url}/login")
        # The stream's end leads the first window there too, and would cut off where it goes next.
        another = window.context.new_page()
        window.close()
    assert site.root.get("/v1/tokens")["tokens"] == []
    another.context.add_cookies([dict(each) for each in cookies])  # type: ignore[arg-type]
    another.goto(site.url)
    another.wait_for_url(f"{site.url}/login")


def test_a_link_works_in_a_window_that_shows_the_log_in_or_its_refusal(site: Site) -> None:
    window = site.context().new_page()
    window.goto(f"{site.url}/login")
    with site.complaints():  # Chromium tells of the 401
        window.evaluate("location.assign('/login#spent')")
        expect(window.locator("h1")).to_have_text("Unauthorized")
    window.evaluate("link => location.assign(link)", site.link())
    expect(window).to_have_url(f"{site.url}/")


@pytest.mark.parametrize("origin", [None, "http://elsewhere.example"])
def test_a_form_of_another_origin_is_refused(site: Site, origin: str | None) -> None:
    key = site.link().partition("#")[2]
    connection = HTTPConnection(str(urlsplit(site.url).netloc), timeout=patience.SECONDS)
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    connection.request(
        "POST", "/login", f"token={key}", headers | ({"Origin": origin} if origin else {})
    )
    answer = connection.getresponse()
    assert answer.status == 403
    assert answer.getheader("Set-Cookie") is None
    connection.close()


def test_the_command_lines_link_opens_a_window(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()  # what the service logged before
    socket = site.running.settings.operator.socket
    assert main.execute(["page", "--operator", socket]) == 0
    (link,) = capsys.readouterr().out.split()
    assert link.startswith(f"{site.url}/login#")
    window = site.context().new_page()
    window.goto(link)
    window.wait_for_url(f"{site.url}/")
    expect(window.locator(".who")).to_contain_text(ME)
