"""Maintenance, units, operations and holds in a browser, and what operators do about them."""

import re
from urllib.parse import urlencode

import pytest
from playwright.sync_api import expect

import patience
from forewarn.connectors.port import Outcome
from forewarn.server.page import machines
from forewarn.server.page.rendering import environment
from page.site import FORM, NARROW, Site, follow, mistaken, plan, typed_in
from server.running import Client, fleet, request_reboot


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


MISTAKES = {
    "machines": ("nosuch", ""),
    "scopes": ("web nosuch",),
    "not_before": ("soon", "+1m"),
    "opens_at": ("soon",),
    "closes_at": ("soon", "+1m"),
    "duration_seconds": ("long",),
    "notice_seconds": ("-1",),
    "at_once": ("all", "many"),
    "waves": ("1, x",),
    "pause_seconds": ("soon",),
    "stop_after": ("0", "two"),
    "check": ("nosuch",),
    "check_tries": ("many",),
    "check_within_seconds": ("soon",),
    "approval_until": ("soon",),
    "windows": ("whenever",),
    "zone": ("Nowhere/City",),
    "blackouts": ("tomorrow", "2026-12-21T00:00Z/2026-12-20T00:00Z"),
    "cutoff_seconds": ("late", "10m"),
    "spread": ("rack",),
    "tags": ("role",),
}
"""Fields of the form, and texts that none of them takes."""


@pytest.mark.parametrize("field", MISTAKES)
def test_a_mistake_is_told_beside_its_field_and_what_was_typed_stays(
    unchanged: Site, field: str
) -> None:
    target = {} if field in {"machines", "tags"} else {"scopes": "web"}
    for text in MISTAKES[field]:
        typed = target | {field: text}
        sent = urlencode({"event_type": "Reboot", **typed, "action": "plan"}).encode()
        answer = unchanged.root.ask("POST", "/page/maintenance", sent, FORM)
        assert 400 <= answer.status < 500, answer.body
        page = answer.body.decode()
        assert mistaken(page) == field
        assert "at policy." not in page
        kept = {name: set(typed_in(page, name).split()) for name in typed}
        assert kept == {name: set(each.split()) for name, each in typed.items()}
    assert operations(unchanged) == []


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


def approve_until(site: Site, state: str) -> None:
    """Approve whatever is announced until the maintenance is so."""

    def over() -> bool:
        for event in site.root.get("/v1/events")["events"]:
            if event["status"] == "Scheduled":
                site.root.ask("POST", "/v1/approvals", {"references": [event["id"]]})
        found: str = site.root.get("/v1/maintenances/1")["maintenance"]["status"]
        return found == state

    patience.until(over)


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


def test_a_list_names_three_targets_and_counts_the_others() -> None:
    parts = environment().get_template("_parts.html").make_module({"now": None})
    hosts = [f"h{number}" for number in range(5000)]
    told = str(parts.targets({"target": "host", "targets": hosts}))
    assert re.findall(r">(h\d+)<", told) == ["h0", "h1", "h2"]
    assert ">and 4997 more<" in told
    assert len(told) < 1000
    assert ">and 1 more<" in str(
        parts.targets({"target": "scope", "targets": ["a", "b", "c", "d"]})
    )


def test_the_panel_opens_and_escape_closes_it(site: Site) -> None:
    request_reboot(site.root)
    window = site.window()
    link = window.locator("main [data-opens='/operations/1.1']").first
    link.click()  # opens the panel
    panel = window.locator("#panel")
    expect(panel).to_be_visible()
    expect(panel.locator("h1")).to_be_focused()
    expect(panel).to_contain_text("web-0")
    expect(panel.locator(".facts")).to_contain_text("UTC")
    window.keyboard.press("Escape")
    expect(panel).to_be_hidden()
    expect(link).to_be_focused()


def test_what_the_service_refuses_is_told_and_nothing_moves(site: Site) -> None:
    request_reboot(site.root)
    window = site.window()
    window.locator("main [data-opens='/operations/1.1']").first.click()  # opens the panel
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


def test_a_token_is_made_shown_once_and_revoked(site: Site) -> None:
    window = site.window(path="/tokens")
    window.get_by_label("Name").fill("ann smith")
    with site.complaints():
        follow(window.get_by_role("button", name="Make token"))
    expect(window.locator(".field.wrong [name=name]")).to_have_value("ann smith")
    window.get_by_label("Name").fill("ann")
    window.get_by_label("Role").select_option("operator")
    window.get_by_label("Expires").fill("+90d")
    follow(window.get_by_role("button", name="Make token"))
    shown = Client(site.url, window.locator("pre").inner_text())
    assert shown.ask("GET", "/v1/holds").status == 200
    (token,) = (one for one in site.root.get("/v1/tokens")["tokens"] if one["name"] == "ann")
    assert token["role"] == "operator"
    assert token["expires_at"]
    window.goto(f"{site.url}/tokens")
    expect(window.locator("pre")).to_have_count(0)
    follow(window.get_by_role("link", name="Revoke ann", exact=True))
    follow(window.get_by_role("button", name="Revoke ann"), f"{site.url}/tokens")
    assert shown.ask("GET", "/v1/holds").status == 401


def test_scopes_and_hosts_are_ticked_and_a_box_filters_them(site: Site) -> None:
    placed = [{"name": f"db-{n}", "host": f"rack{n}"} for n in range(12)]
    assert site.root.ask("PUT", "/v1/fleet", {**fleet(), "machine": placed}).status == 200
    window = site.window(path="/maintenance/new?hosts=elsewhere")
    hosts = window.locator("fieldset.ticks", has=window.locator("[name=hosts]"))
    expect(hosts.locator(":checked")).to_have_count(1)
    expect(hosts.locator("label")).to_have_count(16)
    expect(window.locator("[type=search][data-filters]")).to_have_count(1)  # scopes are few
    window.get_by_label("Filter hosts").fill("RACK1")
    expect(hosts.locator("label:visible")).to_have_text(["rack1", "rack10", "rack11"])
    window.get_by_label("rack11").check()
    window.get_by_label("Filter hosts").fill("rack3")
    window.get_by_label("rack3").check()
    with site.complaints():
        follow(window.get_by_role("button", name="Show the plan"))
    for name in ("elsewhere", "rack11", "rack3"):
        expect(hosts.locator(f"[value={name}]")).to_be_checked()
    expect(hosts.locator(":checked")).to_have_count(3)
    expect(hosts.get_by_role("alert")).to_contain_text("elsewhere")


def test_every_host_of_the_list_can_be_ticked(site: Site) -> None:
    hosts = [f"r{n:03}" for n in range(machines.MAX_PLACES)]
    more = [{"name": f"m{n}", "host": host} for n, host in enumerate(hosts)]
    assert site.root.ask("PUT", "/v1/fleet?prune=true", {"machine": more}).status == 200
    asked = {"ticked": "hosts", "hosts": hosts, "action": "plan", "duration_seconds": "long"}
    body = urlencode(asked, doseq=True).encode()  # with a mistake: a plan would take seconds
    planned = site.root.ask("POST", "/page/maintenance", b"event_type=Reboot&" + body, FORM)
    assert planned.status == 400
    page = planned.body.decode()
    assert mistaken(page) == "duration_seconds"
    assert typed_in(page, "hosts").split() == hosts


def test_a_host_whose_name_has_a_blank_is_ticked_and_no_other(site: Site) -> None:
    more = [{"name": f"m{n}", "host": host} for n, host in enumerate(("rack", "1", "rack 1"))]
    assert site.root.ask("PUT", "/v1/fleet", {"machine": more}).status == 200
    window = site.window()
    window.goto(f"{site.url}/maintenance/new?hosts=rack%201")
    follow(window.get_by_role("button", name="Show the plan"))
    expect(window.locator("main")).to_contain_text("1 machine reboots")
    follow(window.get_by_role("button", name="Start"))
    assert site.root.get("/v1/maintenances/1")["maintenance"]["targets"] == ["rack 1"]
