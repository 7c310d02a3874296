"""Maintenance in a browser: from the form to its end, and what operators do on the way."""

import re
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Page, expect

import patience
from forewarn.connectors.port import Outcome
from forewarn.vocabulary import AccessRole
from page.site import FORM, NARROW, Site, follow, mistaken, plan, typed_in
from server.running import Client, request_reboot


def operations(site: Site) -> list[dict[str, object]]:
    found: list[dict[str, object]] = site.root.get("/v1/history")["operations"]
    return found


def test_a_maintenance_goes_from_the_form_to_its_end(quick_site: Site) -> None:
    site = quick_site
    window = site.window()
    plan(window, f"{site.url}/maintenance/new", machines="web-0", duration_seconds="30s")
    expect(window.locator("h1")).to_have_text("The plan")
    expect(window.locator("tbody")).to_contain_text("web-0")
    assert operations(site) == []
    follow(
        window.get_by_role("button", name="Start"),
        f"{site.url}/maintenance/1",
    )
    expect(window.locator("main > .head")).to_contain_text("under notice")
    follow(window.get_by_role("link", name="Approve 1.1"))
    follow(
        window.get_by_role("button", name="Approve 1.1"),
        f"{site.url}/maintenance/1",
    )
    expect(window.locator("main > .head")).to_contain_text("done")  # by the live stream
    (operation,) = operations(site)
    assert operation["status"] == "Completed"
    assert operation["duration_seconds"] == 30
    window.goto(f"{site.url}/maintenance")
    expect(window.get_by_role("row", name=re.compile("web-0"))).to_contain_text("1 done")


@pytest.mark.parametrize(
    ("typed", "field"),
    [
        ({"machines": "nosuch"}, "machines"),
        ({"machines": "web-0", "duration_seconds": "long"}, "duration_seconds"),
    ],
)
def test_a_mistake_is_seen_beside_its_field_and_what_was_typed_stays(
    unchanged: Site, tab: Page, typed: dict[str, str], field: str
) -> None:
    with unchanged.complaints():  # Chromium tells of the status
        plan(tab, f"{unchanged.url}/maintenance/new", **typed)
        wrong = tab.locator(".field.wrong")
        expect(wrong).to_have_count(1)
    expect(wrong.locator(f"[name={field}]")).to_have_attribute("aria-invalid", "true")
    expect(wrong.get_by_role("alert")).to_be_visible()
    for name, text in typed.items():
        expect(tab.locator(f"[name={name}]")).to_have_value(text)
    assert operations(unchanged) == []


@pytest.mark.parametrize(
    ("typed", "field"),
    [
        ({"machines": "nosuch"}, "machines"),
        ({"machines": ""}, "machines"),
        ({"machines": "web-0", "not_before": "soon"}, "not_before"),
        ({"machines": "web-0", "not_before": "+1m"}, "not_before"),
        ({"machines": "web-0", "closes_at": "+1m"}, "closes_at"),
        ({"machines": "web-0", "duration_seconds": "long"}, "duration_seconds"),
    ],
)
def test_a_mistake_is_told_beside_its_field_and_what_was_typed_stays(
    unchanged: Site, typed: dict[str, str], field: str
) -> None:
    texts = {"kind": "machines", "event_type": "Reboot", **typed, "action": "plan"}
    answer = unchanged.root.ask("POST", "/page/maintenance", urlencode(texts).encode(), FORM)
    assert 400 <= answer.status < 500
    page = answer.body.decode()
    assert mistaken(page) == field
    assert {name: typed_in(page, name) for name in typed} == typed
    assert operations(unchanged) == []


def test_a_form_that_is_sent_twice_asks_once(site: Site) -> None:
    window = site.window()
    plan(window, f"{site.url}/maintenance/new", machines="web-0")
    sent = window.locator("main form").evaluate(
        """(form) => {
            const button = form.querySelector("button");
            return String(new URLSearchParams(new FormData(form, button)));
        }"""
    )
    twice_at_once = """async (body) => {
        const headers = {"Content-Type": "application/x-www-form-urlencoded"};
        const send = () => fetch("/page/maintenance", {method: "POST", body, headers});
        return (await Promise.all([send(), send()])).map(answer => answer.url);
    }"""
    assert window.evaluate(twice_at_once, sent) == [f"{site.url}/maintenance/1"] * 2
    follow(window.get_by_role("button", name="Start"), f"{site.url}/maintenance/1")
    assert len(site.root.get("/v1/maintenances")["maintenances"]) == 1


def test_a_plan_can_be_changed_and_keeps_what_was_typed(site: Site) -> None:
    window = site.window()
    plan(window, f"{site.url}/maintenance/new", scopes="web", description="Patch day")
    expect(window.locator("tbody tr")).to_have_count(3)  # a step for each update domain
    expect(window.locator("q")).to_have_text("Patch day")
    follow(window.get_by_role("button", name="Change"))
    expect(window.locator("[name=scopes]:checked")).to_have_value("web")
    assert operations(site) == []


def test_a_second_click_sends_nothing(site: Site) -> None:
    request_reboot(site.root)
    window = site.window(path="/maintenance/1")
    follow(window.get_by_role("link", name="Cancel 1.1"))
    sent: list[str] = []
    window.on("request", lambda request: sent.append(request.method))
    twice = "button => { button.click(); setTimeout(() => button.click()); }"
    with window.expect_navigation(url=f"{site.url}/maintenance/1"):
        window.get_by_role("button", name="Cancel 1.1").evaluate(twice)
    assert sent.count("POST") == 1


def test_postponing_takes_a_time_and_refuses_an_earlier_one(site: Site) -> None:
    planned = request_reboot(site.root)["operations"][0]["not_before"]
    window = site.window(path="/maintenance/1")
    follow(window.get_by_role("link", name="Postpone 1.1"))
    later = window.get_by_label("Not before")
    with site.complaints():
        for typed in ("", "tomorrow", "+1s"):
            later.fill(typed)
            follow(window.get_by_role("button", name="Postpone 1.1"))
            expect(window.get_by_role("alert").filter(has_text=re.compile("."))).to_be_visible()
            expect(later).to_have_value(typed)
    later.fill("+5h")
    follow(window.get_by_role("button", name="Postpone 1.1"), f"{site.url}/maintenance/1")
    assert str(operations(site)[0]["not_before"]) > planned


def test_acknowledging_asks_once_more_where_a_machine_has_not_asked_since(site: Site) -> None:
    request_reboot(site.root)
    site.root.ask("POST", "/v1/approvals", {"references": ["1.1"]})
    attempt = patience.until(lambda: operations(site)[0]["attempt"])
    site.running.plane.finish("1.1", int(str(attempt)), Outcome(succeeded=False)).result()
    window = site.window(path="/maintenance/1")
    follow(window.get_by_role("link", name="Acknowledge 1.1"))
    button = window.get_by_role("button", name="Acknowledge 1.1")
    box = window.get_by_role("checkbox")
    with site.complaints():
        follow(button)
        expect(window.locator(".field.check [role=alert]")).to_contain_text("web-0")
    assert operations(site)[0]["acknowledged_by"] == ""
    box.check()
    follow(button, f"{site.url}/maintenance/1")
    assert operations(site)[0]["acknowledged_by"] != ""


def test_a_viewer_sees_no_button_and_is_refused_without_one(site: Site) -> None:
    request_reboot(site.root)
    asked = {"event_type": "Reboot", "machines": ["web-1"], "policy": {}}
    assert site.root.ask("POST", "/v1/maintenances", asked).status == 201
    window = site.window(AccessRole.VIEWER)
    for address in (
        *("maintenance", "maintenance/1", "machines", "machines/web-0", "machines?scope=web"),
        *("maintenance/2", "history"),
    ):
        window.goto(f"{site.url}/{address}")
        expect(window.locator("main form[method=post]"), address).to_have_count(0)
        expect(window.locator("main a[href*='/orders/']"), address).to_have_count(0)
    with site.complaints():
        for address in ("orders/cancel?reference=1", "audit"):
            answer = window.goto(f"{site.url}/{address}")
            assert answer is not None
            assert answer.status == 403, address
    cookies = "; ".join(f"{c['name']}={c['value']}" for c in window.context.cookies())
    headers = {
        "Cookie": cookies,
        "Origin": site.url,
        **FORM,
    }
    sent = b"reference=1&event_type=Reboot&machines=web-2&action=start"
    for path in ("orders/cancel", "maintenance"):
        refused = Client(site.url).ask("POST", f"/page/{path}", sent, headers)
        assert refused.status == 403, path
    assert [each["status"] for each in operations(site)] == ["Scheduled"]
    assert len(site.root.get("/v1/maintenances")["maintenances"]) == 2


def test_a_viewer_may_plan_and_not_start(site: Site) -> None:
    window = site.window(AccessRole.VIEWER, path="/maintenance")
    follow(window.get_by_role("link", name="Plan maintenance"))
    window.locator("[name=machines]").fill("web-0")
    follow(window.get_by_role("button", name="Show the plan"))
    expect(window.get_by_role("heading", name="The plan")).to_be_visible()
    expect(window.locator("button[value=start]")).to_have_count(0)
    assert operations(site) == []


def test_a_plan_is_not_in_the_audit_log_as_a_change(site: Site) -> None:
    for body, status in ((b"machines=web-0&event_type=Reboot", 200), (b"", 400)):
        answer = site.root.ask("POST", "/page/maintenance", body + b"&action=plan", FORM)
        assert answer.status == status
    site.running.plane.probe().result()
    actions = {each["action"] for each in site.root.get("/v1/audit")["records"]}
    assert actions == {"PUT /v1/fleet"}


def test_all_of_it_works_without_a_script(quick_site: Site) -> None:
    site = quick_site
    context = site.context(scripts=False)
    window = context.new_page()
    link = site.link()
    window.goto(link)
    window.locator("#token").fill(link.partition("#")[2])
    follow(window.get_by_role("button", name="Log in"))
    plan(window, f"{site.url}/maintenance/new", machines="web-0")
    follow(window.get_by_role("button", name="Start"), f"{site.url}/maintenance/1")
    follow(window.get_by_role("link", name="Cancel 1.1"))
    follow(window.get_by_role("button", name="Cancel 1.1"), f"{site.url}/maintenance/1")
    assert operations(site)[0]["status"] == "Canceled"


def test_the_form_can_be_filled_in_with_keys_alone_on_a_narrow_screen(site: Site) -> None:
    window = site.window(size=NARROW, path="/maintenance/new?machines=web-0")
    window.locator("[name=machines]").focus()
    more = window.locator("summary").filter(has_text="More")
    for _ in range(20):
        window.keyboard.press("Tab")
        if more.evaluate("each => each === document.activeElement"):
            break
    expect(more).to_be_focused()
    window.keyboard.press("Enter")
    window.locator("[name=description]").focus()
    window.keyboard.type("by keys")
    with window.expect_navigation():
        window.keyboard.press("Enter")
    expect(window.locator("q")).to_have_text("by keys")
    width = window.evaluate("document.documentElement.scrollWidth")
    assert width <= NARROW[0]
