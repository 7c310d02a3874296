"""A hold that Now tells of is released where its button leads."""

import pytest
from playwright.sync_api import expect

from page.site import Site


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
    site: Site, kind: str, name: str, path: str
) -> None:
    held = {"kind": kind, "name": name, "reason": "the backup runs"}
    assert site.root.ask("POST", "/v1/holds", held).status == 201
    window = site.window()
    window.locator(".alert", has_text="the backup runs").get_by_role("link", name="Look").click()
    window.wait_for_url(site.url + path)
    expect(window.locator("main")).to_contain_text("the backup runs")
    window.get_by_role("link", name="Release").click()
    window.locator("main form").get_by_role("button", name="Release").click()
    window.wait_for_url(site.url + path)
    expect(window.locator("main")).not_to_contain_text("the backup runs")
    assert site.root.get("/v1/holds")["holds"] == []
