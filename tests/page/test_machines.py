"""Machines in a browser: a search, and what is known of one."""

import json
import re

import pytest
from playwright.sync_api import expect

from forewarn.protocol.versions import VERSIONS
from forewarn.vocabulary import AgentStatus
from page.site import NARROW, Site, follow
from server.running import request_reboot


def test_the_search_of_the_bar_leads_to_a_machine_or_to_those_like_it(site: Site) -> None:
    window = site.window()
    window.keyboard.press("/")
    window.keyboard.type("WEB-1")
    window.keyboard.press("Enter")
    window.wait_for_url(re.compile("/machines/", re.IGNORECASE))
    expect(window.locator("h1")).to_have_text("web-1")
    window.keyboard.press("/")
    window.keyboard.type("web-")
    window.keyboard.press("Enter")
    window.wait_for_url(f"{site.url}/machines?q=web-")
    expect(window.locator("tbody tr")).to_have_count(3)


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("q=h1", ["batch_0", "web-1"]),
        ("q=10.0.3", ["Bastion"]),
        ("scope=WEB", ["web-0", "web-1", "web-2"]),
        ("scope=web&q=-2", ["web-2"]),
        ("host=h1", ["batch_0", "web-1"]),
        ("host=unknown", ["Bastion"]),
        ("q=nosuch", []),
        ("q=%3Cscript%3E", []),
    ],
)
def test_machines_are_found_by_what_they_are_called_and_where_they_are(
    unchanged: Site, query: str, names: list[str]
) -> None:
    answer = unchanged.root.ask("GET", f"/machines?{query}")
    assert answer.status == 200
    assert (
        re.findall(r'<tr>\s*<td class="name"><a [^>]*>([^<]*)</a></td>', answer.body.decode())
        == names
    )


def test_a_scope_is_held_though_the_host_beside_it_is(site: Site) -> None:
    assert site.root.ask("POST", "/v1/holds", {"kind": "host", "name": "h1"}).status == 201
    window = site.window(path="/machines?scope=web&host=h1")
    main = window.locator("main")
    expect(main).to_contain_text("Held: host h1")
    expect(main.get_by_role("link", name="Release scope web")).to_have_count(0)
    follow(main.get_by_role("link", name="Hold scope web"))
    follow(main.locator("form").get_by_role("button", name="Hold"), re.compile("scope=web"))
    expect(main.get_by_role("link", name="Release scope web")).to_have_count(1)


def test_a_long_list_comes_in_pages_that_neither_repeat_nor_skip(site: Site) -> None:
    machines = [{"name": f"m{number:03}"} for number in range(120)]
    assert site.root.ask("PUT", "/v1/fleet", {"machine": machines}).status == 200
    window = site.window(path="/machines?q=m0")
    names = window.locator("tbody tr td:first-child")
    expect(names).to_have_text([f"m{number:03}" for number in range(50)])
    follow(window.get_by_role("link", name="Next page"), re.compile("cursor="))
    expect(names).to_have_text([f"m{number:03}" for number in range(50, 100)])
    expect(window.get_by_role("link", name="Next page")).to_have_count(0)


def test_a_machine_tells_its_facts_and_its_agents_word(site: Site) -> None:
    site.running.guests.saw("web-0", agent=AgentStatus.HELD, reason="<b>12 connections</b>")
    request_reboot(site.root)
    window = site.window(path="/machines/web-0")
    main = window.locator("main")
    for fact in ("h0", "10.0.0.10", "availability set", "held: <b>12 connections</b>", "1.1"):
        expect(main).to_contain_text(fact)
    window.get_by_role("link", name="1.1").first.click()  # opens the panel
    expect(window.locator("#panel")).to_contain_text("web-0")


def test_a_machine_has_its_past(quick_site: Site) -> None:
    site = quick_site
    request_reboot(site.root)
    window = site.window(path="/machines/web-0")
    latest = window.locator("section", has=window.get_by_role("heading", name="Latest"))
    expect(latest).to_contain_text("Nothing finished")
    assert site.root.ask("POST", "/v1/approvals", {"references": ["1"]}).status == 200
    expect(latest.locator("tbody tr")).to_contain_text("done")  # by the live stream


def test_the_document_of_each_version_is_what_guests_read(site: Site) -> None:
    request_reboot(site.root, duration_seconds=5)
    window = site.window()
    for status in ("Scheduled", "Started"):
        window.goto(f"{site.url}/machines/web-0")
        for version in VERSIONS:
            read = site.running.guests.document("web", version)
            (event,) = json.loads(read)["Events"]
            assert event["EventStatus"] == status
            shown = window.locator(f"#document-{version.name} pre").text_content()
            assert json.loads(str(shown)) == json.loads(read), version.name
            address = f"{site.url}/machines/web-0/document?version={version.name}"
            assert window.request.get(address).body() == read
        site.root.ask("POST", "/v1/approvals", {"references": ["1"]})


@pytest.mark.parametrize("path", ["nosuch", "nosuch/document", "web-0/document?version=1"])
def test_what_is_not_there_is_a_page_that_says_so(unchanged: Site, path: str) -> None:
    answer = unchanged.root.ask("GET", f"/machines/{path}")
    assert answer.status == 404
    assert "<h1>Not found</h1>" in answer.body.decode()


def test_times_have_the_readers_own_beside_utc(site: Site) -> None:
    request_reboot(site.root)
    window = site.window(path="/machines/web-0")
    moment = window.locator("main td time").first
    written = str(moment.get_attribute("datetime"))
    title = str(moment.get_attribute("title"))
    assert title.startswith(f"{written} · ")
    assert title != f"{written} · "


def test_every_page_fits_a_narrow_screen(site: Site) -> None:
    request_reboot(site.root)
    site.root.ask("POST", "/v1/maintenances", {"event_type": "Reboot", "scopes": ["web"]})
    window = site.window(size=NARROW)
    for address in (
        *("machines", "machines?scope=web", "machines/web-0", "maintenance", "maintenance/1"),
        *("maintenance/new", "history", "audit"),
        "orders/cancel?reference=1",
    ):
        window.goto(f"{site.url}/{address}")
        width = window.evaluate("document.documentElement.scrollWidth")
        assert width <= NARROW[0], address
