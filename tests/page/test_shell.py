"""What is around every page: its policy, keys, themes, sizes, and the live stream."""

from pathlib import Path

import pytest
from playwright.sync_api import Response, Route, expect

from forewarn.server.operator import application, routing
from forewarn.store import memory, sqlite
from forewarn.vocabulary import AccessRole
from page.site import NARROW, Contexts, Site, follow
from ports import free_port
from server.running import Client, Running, request_reboot, settings_in

CONNECTIONS = 6
"""How many a browser has to one origin by HTTP/1.1."""

HIDDEN = "Object.defineProperty(document, 'hidden', {get: () => !window.isShown})"
"""A browser that nobody sees calls each of its windows visible: so a script hides them."""

SHOW = "window.isShown = true; document.dispatchEvent(new Event('visibilitychange'))"

LATE = """new Promise((done) => {
    const look = () => window.htmx ? setTimeout(done, 100) : setTimeout(look, 10);
    look();
})"""
"""Playwright's own waiting evaluates text again and again, which the page's policy refuses."""


def test_each_page_allows_nothing_in_line_and_nothing_from_elsewhere(site: Site) -> None:
    window = site.window()
    for path in ("/", "/login"):
        answer = window.goto(site.url + path)
        assert answer is not None
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["cache-control"] == "no-store"
    broken = """() => {
        const script = document.createElement("script");
        script.textContent = "document.title = 'run'";
        document.body.append(script);
        return document.title;
    }"""
    with site.complaints() as complaints:
        assert window.evaluate(broken) != "run"
        expect(window.locator("body script")).to_have_count(1)
    assert any("Content Security Policy" in each for each in complaints)


def test_what_a_page_loads_is_kept_by_the_browser_and_changes_its_address(site: Site) -> None:
    window = site.context().new_page()
    files: list[Response] = []

    def note(answer: Response) -> None:
        files.append(answer)

    window.on("response", note)
    window.goto(site.link())
    window.wait_for_url(f"{site.url}/")
    loaded = [each for each in files if "/page/static/" in each.url]
    assert len(loaded) >= 5
    assert all("immutable" in each.headers["cache-control"] for each in loaded)
    refused = Client(site.url).ask("GET", "/page/static/forewarn-0000000000000000.css")
    assert refused.status == 404


def test_a_slash_leads_to_the_search_and_is_a_letter_within_it(site: Site) -> None:
    window = site.window()
    window.keyboard.press("/")
    search = window.locator("#search")
    expect(search).to_be_focused()
    expect(search).to_have_value("")
    window.keyboard.type("a/b")
    expect(search).to_have_value("a/b")


@pytest.mark.parametrize(
    ("wanted", "path"),
    [("1.1", "/operations/1.1"), ("12", "/maintenance/12"), ("WEB-0", "/machines/WEB-0")],
)
def test_the_search_leads_to_what_has_the_name(unchanged: Site, wanted: str, path: str) -> None:
    answer = unchanged.root.ask("GET", f"/search?q={wanted}")
    assert (answer.status, answer.headers["Location"]) == (303, path)


def test_the_search_for_anything_else_is_a_list_of_machines(unchanged: Site) -> None:
    answer = unchanged.root.ask("GET", "/search?q=we%26b")
    assert (answer.status, answer.headers["Location"]) == (303, "/machines?q=we%26b")


def test_the_first_key_skips_what_every_page_repeats(site: Site) -> None:
    window = site.window()
    window.keyboard.press("Tab")
    focused = window.locator(":focus")
    expect(focused).to_have_text("Skip to the content")
    window.keyboard.press("Enter")
    expect(focused).to_have_id("main")
    window.goto(site.url)
    pages = ["Now", "Machines", "Maintenance", "Rollouts", "History"]
    for name in ("Skip to the content", "Forewarn", *pages):
        window.keyboard.press("Tab")
        expect(focused).to_have_text(name)
    window.keyboard.press("Tab")
    expect(focused).to_have_id("search")


def test_the_theme_is_the_systems_until_somebody_chooses(site: Site) -> None:
    window = site.window(theme="dark")
    colour = "getComputedStyle(document.body).backgroundColor"
    dark = window.evaluate(colour)
    window.get_by_role("button", name="Light or dark").click()  # stays on the page
    light = window.evaluate(colour)
    assert dark != light
    window.reload()
    assert window.evaluate(colour) == light


def test_a_telephone_shows_all_of_it_without_scrolling_sideways(site: Site) -> None:
    request_reboot(site.root)
    window = site.window(size=NARROW)
    for path in ("/", "/operations/1.1"):
        window.goto(site.url + path)
        assert window.evaluate("document.documentElement.scrollWidth") == NARROW[0]


def test_no_shape_is_left_in_black(site: Site) -> None:
    request_reboot(site.root)
    asked = {"event_type": "Reboot", "scopes": ["batch"]}
    assert site.root.ask("POST", "/v1/rollouts", asked).status == 201
    assert site.root.ask("POST", "/v1/cancellations", {"references": ["1"]}).status == 200
    window = site.window()
    black = """() => [...document.querySelectorAll("main svg rect")]
        .filter((each) => !each.closest("symbol, pattern"))
        .filter((each) => getComputedStyle(each).fill === "rgb(0, 0, 0)")
        .map((each) => each.outerHTML)"""
    for path in ("/", "/maintenance", "/maintenance/1", "/rollouts", "/rollouts/1", "/history"):
        window.goto(site.url + path)
        assert window.evaluate(black) == [], path


def test_the_clock_is_the_services(site: Site) -> None:
    window = site.window()
    shown = window.locator("#clock")
    first = shown.text_content()
    expect(shown).not_to_have_text(first or "")


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
    one, other = site.window(), site.window(AccessRole.VIEWER)
    for window in (one, other):
        window.goto(f"{site.url}/operations/1.1")
    follow(one.get_by_role("link", name="Cancel 1.1"))
    follow(one.get_by_role("button", name="Cancel 1.1"))
    one.goto(f"{site.url}/operations/1.1")
    for window in (one, other):
        expect(window.locator(".state b")).to_have_text("Canceled")


def test_the_stream_opens_however_late_its_script_comes(site: Site) -> None:
    window = site.window()

    def come_late(route: Route) -> None:
        window.evaluate(LATE)
        route.continue_()

    window.route("**/hx-sse*", come_late)
    window.goto(site.url)
    expect(window.locator("#live")).to_have_attribute("data-state", "live")


def test_hidden_windows_leave_the_browsers_connections_to_those_in_view(site: Site) -> None:
    window = site.window()
    hidden = [window.context.new_page() for _ in range(CONNECTIONS + 1)]
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
    with Running(wanted, memory.MemoryStore()) as running:
        window = Site(running, contexts).window()
    expect(window.locator("#live")).to_have_attribute("data-state", "cut off")
    with Running(wanted, memory.MemoryStore()) as running:
        window.wait_for_url(f"{running.opened.operators[1]}/login")
        window.context.close()


def test_a_page_whose_session_ended_leads_to_the_log_in(site: Site) -> None:
    window = site.window(AccessRole.OPERATOR)
    with site.complaints():
        assert site.root.ask("DELETE", "/v1/tokens?name=operator").status == 200
        request_reboot(site.root)
        window.wait_for_url(f"{site.url}/login")


def test_without_its_setting_there_is_no_page(tmp_path: Path) -> None:
    wanted = settings_in(tmp_path, listen="127.0.0.1:0", page=False)
    with Running(wanted, sqlite.open_store(Path(wanted.store.path))) as running:
        refused = running.client().ask("POST", "/v1/logins", {})
        assert (refused.status, refused.error["code"]) == (409, "conflict")
        assert Client(running.opened.operators[1]).ask("GET", "/login").status == 401
        assert running.client().ask("GET", "/login").status == 404


NEEDED = routing.roles(application.OF_PAGE)


def test_each_address_lets_in_its_role_and_those_above_it_alone(unchanged: Site) -> None:
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Origin": unchanged.url}
    for number, (route, needed) in enumerate(NEEDED.items()):
        method, path = route.split()
        for field in ("{name}", "{number}", "{reference}", "{verb}"):
            path = path.replace(field, "1")
        for role in AccessRole:
            if needed is None or (path == "/page/stream" and role.allows(needed)):
                continue  # anybody's, or without an end
            asked = {"name": f"{role}-{number}", "role": role}  # one of the addresses revokes it
            made = unchanged.root.ask("POST", "/v1/tokens", asked)
            body = b"" if method == "POST" else None
            client = Client(unchanged.url, made.json["token"])
            answer = client.ask(method, path, body, headers)
            refused = answer.status == 403
            assert refused is not role.allows(needed), (route, role, answer.body)
