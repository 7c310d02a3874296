"""A hold that Now tells of is released where its button leads."""

import pytest
from playwright.sync_api import Page, expect

from page.site import Site, follow


@pytest.fixture(scope="module")
def window(unchanged: Site) -> Page:
    """A window of a site whose holds are released before a test ends."""
    return unchanged.window()


@pytest.mark.parametrize(
    ("kind", "name", "path"),
    [
        ("everything", "", "/maintenance"),
        ("scope", "web", "/machines?scope=web"),
        ("host", "h1", "/machines?host=h1"),
        ("machine", "web-0", "/machines/web-0"),
    ],
)
def test_an_alert_of_a_hold_leads_to_where_it_is_released(
    unchanged: Site, window: Page, kind: str, name: str, path: str
) -> None:
    site = unchanged
    held = {"kind": kind, "name": name, "reason": "the backup runs"}
    assert site.root.ask("POST", "/v1/holds", held).status == 201
    window.goto(site.url)
    alert = window.locator(".alert", has_text="the backup runs")
    alert.locator("strong a").click()
    expect(window).to_have_url(site.url + path)
    expect(window.locator("main")).to_contain_text("the backup runs")
    window.goto(site.url)
    follow(alert.get_by_role("link", name="Release"))
    follow(window.locator("main form").get_by_role("button", name="Release"), site.url + path)
    expect(window.locator("main")).not_to_contain_text("the backup runs")
    assert site.root.get("/v1/holds")["holds"] == []


def test_twelve_alerts_are_all_on_the_page_and_stay_open_when_one_goes(site: Site) -> None:
    places = [("machine", name) for name in ("web-0", "web-1", "web-2", "batch_0", "Bastion")]
    places += [("machine", "FrontEnd_IN_0"), ("everything", "")]
    places += [("host", f"h{n}") for n in range(3)] + [("scope", "web"), ("scope", "batch")]
    for kind, name in places:
        assert site.root.ask("POST", "/v1/holds", {"kind": kind, "name": name}).status == 201
    window = site.window()
    window.locator("summary", has_text="8 more").click()
    expect(window.locator(".alert:visible")).to_have_count(12)
    assert site.root.ask("DELETE", "/v1/holds?kind=everything").status == 200
    expect(window.locator(".alert:visible")).to_have_count(11)  # by the live stream
