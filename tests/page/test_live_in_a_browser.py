"""The live stream in a browser: what changes shows by itself, whatever else goes on."""

from playwright.sync_api import expect

from forewarn.vocabulary import AccessRole
from page.site import Site, follow
from server.running import request_reboot

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


def test_two_windows_show_what_one_of_them_does(site: Site) -> None:
    request_reboot(site.root)
    one, other = (
        site.window(role, path="/operations/1.1") for role in (AccessRole.ADMIN, AccessRole.VIEWER)
    )
    follow(one.get_by_role("link", name="Cancel 1.1"))
    follow(one.get_by_role("button", name="Cancel 1.1"))
    one.goto(f"{site.url}/operations/1.1")
    for window in (one, other):
        expect(window.locator(".state b")).to_have_text("Canceled")


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
