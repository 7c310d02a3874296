"""A page whose stream opens late, breaks off or is taken from it."""

from pathlib import Path

from playwright.sync_api import Route, expect

from forewarn.store import sqlite
from forewarn.store.sqlite import InMemoryStore
from forewarn.vocabulary import AccessRole
from page.site import Contexts, Site
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
