"""An operation in the panel beside a page: what it says, and what its buttons do."""

import pytest
from playwright.sync_api import Page, expect

from page.site import Site
from server.running import request_reboot

"""Sends an order as a form of a page would."""


def opened(window: Page, reference: str = "1.1") -> None:
    """Open an operation in the panel, as a link of Now does."""
    window.locator(".bar").evaluate(
        """(bar, address) => {
            const link = document.createElement("a");
            link.href = address;
            link.textContent = "open";
            link.dataset.opens = address;
            link.setAttribute("hx-get", address);
            link.setAttribute("hx-target", "#panel");
            bar.append(link);
            htmx.process(link);
        }""",
        f"/operations/{reference}",
    )
    window.get_by_role("link", name="open", exact=True).click()  # opens the panel


def test_the_panel_opens_and_escape_closes_it(site: Site) -> None:
    request_reboot(site.root)
    window = site.window()
    opened(window)
    panel = window.locator("#panel")
    expect(panel).to_be_visible()
    expect(panel.locator("h1")).to_be_focused()
    expect(panel).to_contain_text("web-0")
    expect(panel.locator(".facts")).to_contain_text("UTC")
    window.keyboard.press("Escape")
    expect(panel).to_be_hidden()
    expect(window.get_by_role("link", name="open", exact=True)).to_be_focused()


def test_what_the_service_refuses_is_told_and_nothing_moves(site: Site) -> None:
    request_reboot(site.root)
    window = site.window()
    opened(window)
    panel = window.locator("#panel")
    expect(panel.get_by_role("link", name="Postpone 1.1")).to_be_visible()
    with site.complaints():  # Chromium tells of the status
        window.evaluate(
            """() => htmx.ajax("POST", "/page/orders/cancel", {values: {reference: "9.9"}})"""
        )
        expect(window.locator("#refusal")).to_contain_text("9.9")
    window.locator("#refusal [data-close]").click()
    expect(window.locator("#refusal .refusal")).to_have_count(0)
    expect(panel).to_contain_text("web-0")


@pytest.mark.parametrize("reference", ["7.7", "<script>", "%2e%2e"])
def test_an_unknown_operation_is_a_page_that_says_so(
    unchanged: Site, tab: Page, reference: str
) -> None:
    with unchanged.complaints():
        tab.goto(f"{unchanged.url}/operations/{reference}")
        expect(tab.locator("h1")).to_be_visible()
