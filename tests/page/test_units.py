"""Units in a browser: planned, started, paused, resumed, cancelled, left out and tried again."""

import re
from typing import Any
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Page, expect

import patience
from page.site import FORM, Site, follow, mistaken, plan, typed_in


def started(site: Site, **policy: Any) -> Page:
    """Start a maintenance with units; return a window that shows it."""
    asked = {"event_type": "Reboot", "machines": ["web-0", "web-1", "web-2"]}
    waves = {"waves": ["1", "rest"], **policy}
    assert site.root.ask("POST", "/v1/maintenances", {**asked, "policy": waves}).status == 201
    return site.window(path="/maintenance/1")


def approve_until(site: Site, state: str) -> None:
    """Approve whatever is announced until the maintenance is so."""

    def over() -> bool:
        for event in site.root.get("/v1/events")["events"]:
            if event["status"] == "Scheduled":
                site.root.ask("POST", "/v1/approvals", {"references": [event["id"]]})
        found: str = site.root.get("/v1/maintenances/1")["maintenance"]["status"]
        return found == state

    patience.until(over)


def test_units_go_from_the_form_to_their_end(quick_site: Site) -> None:
    site = quick_site
    window = site.window()
    plan(
        window,
        f"{site.url}/maintenance/new",
        machines="web-0 web-1 web-2",
        waves="1, rest",
        duration_seconds="1m",
    )
    expect(window.locator("tbody tr")).to_have_count(2)
    assert site.root.get("/v1/maintenances")["maintenances"] == []
    follow(
        window.get_by_role("button", name="Start"),
        f"{site.url}/maintenance/1",
    )
    approve_until(site, "done")
    expect(window.locator("main > .head")).to_contain_text("done")  # by the live stream
    expect(window.locator("main a.button[href^='/orders/']")).to_have_count(0)
    window.goto(f"{site.url}/maintenance")
    expect(window.get_by_role("row", name=re.compile("web-0"))).to_contain_text("3 done")


def test_a_check_and_a_time_for_approval_are_planned_and_kept(quick_site: Site) -> None:
    site = quick_site
    window = site.window()
    texts = {"machines": "web-0 web-1", "check": "nosuch", "approval_until": "+2h"}
    with site.complaints():
        plan(window, f"{site.url}/maintenance/new", **texts)
        expect(window.locator(".field.wrong [name=check]")).to_have_value("nosuch")
    known = window.locator("[name=check]").get_attribute("list")
    options = window.locator(f"#{known}").evaluate("each => [...each.options].map(o => o.value)")
    assert options == ["probe"]
    plan(
        window,
        f"{site.url}/maintenance/new",
        **texts | {"check": "probe", "check_tries": "1", "check_within_seconds": "1s"},
    )
    facts = window.locator("dl.facts")
    expect(facts).to_contain_text("probe, 1 try in")
    expect(facts).to_contain_text("Only with approval until")
    planned_until = facts.locator("time").get_attribute("datetime")
    follow(window.get_by_role("button", name="Start"), f"{site.url}/maintenance/1")
    expect(facts.locator(f"time[datetime='{planned_until}']")).to_be_visible()
    policy = site.root.get("/v1/maintenances/1")["policy"]
    assert policy["approval_until"][:19] == str(planned_until)[:19]
    approve_until(site, "halted")  # for the check does not pass
    expect(window.locator("main > .head .word")).to_have_text("halted")
    expect(window.locator("main > .head")).to_contain_text("exit status 1")


def test_a_blocked_unit_says_why(site: Site) -> None:
    asked = {"event_type": "Reboot", "machines": ["web-1"]}
    assert site.root.ask("POST", "/v1/maintenances", asked).status == 201
    started(site)
    window = site.window(path="/maintenance/2")
    row = window.get_by_role("row", name=re.compile("web-0"))
    expect(row).to_contain_text("blocked")
    expect(row).to_contain_text("1.1")
    follow(window.get_by_role("link", name=re.compile("blocked")))
    expect(window.locator("tr", has_text="blocked")).to_have_count(1)


@pytest.mark.parametrize(
    ("field", "typed"),
    [
        ("scopes", "web nosuch"),
        ("at_once", "all"),
        ("windows", "whenever"),
        ("zone", "Nowhere/City"),
        ("blackouts", "2026-12-21T00:00Z/2026-12-20T00:00Z"),
        ("spread", "rack"),
    ],
)
def test_a_mistake_is_told_beside_its_field_and_what_was_typed_stays(
    unchanged: Site, field: str, typed: str
) -> None:
    texts = {"event_type": "Reboot", "scopes": "web", field: typed}
    body = urlencode({**texts, "action": "plan"}).encode()
    answer = unchanged.root.ask("POST", "/page/maintenance", body, FORM)
    assert 400 <= answer.status < 500
    page = answer.body.decode()
    assert mistaken(page) == field
    assert set(typed_in(page, field).split()) == set(typed.split())
    assert set(typed_in(page, "scopes").split()) == set(texts["scopes"].split())


@pytest.mark.parametrize("order", ["pause", "resume"])
@pytest.mark.parametrize("reference", ["everything", "1", "1.1"])
def test_an_order_about_a_maintenance_that_is_not_there_is_refused(
    unchanged: Site, order: str, reference: str
) -> None:
    asked = unchanged.root.ask("GET", f"/orders/{order}?reference={reference}")
    assert asked.status == 404
