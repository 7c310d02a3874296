"""The pages of holds, hosts and tokens: each list has the orders about what it lists."""

from urllib.parse import quote, urlencode

import pytest
from playwright.sync_api import expect

from forewarn.vocabulary import AccessRole
from page.site import FORM, Site, follow
from server.running import Client, fleet, request_reboot


def test_a_hold_is_made_and_released_on_the_page_of_holds(site: Site) -> None:
    request_reboot(site.root)
    window = site.window(path="/holds")
    window.get_by_label("Hold", exact=True).select_option("scope web")
    follow(window.get_by_role("button", name="Hold"))
    window.get_by_label("Reason").fill("the backup runs")
    follow(window.get_by_role("button", name="Hold scope web"), f"{site.url}/holds")
    row = window.locator("tr", has_text="scope web")
    expect(row).to_contain_text("the backup runs")
    expect(row).to_contain_text("1.1")
    follow(row.get_by_role("link", name="Release"))
    follow(window.get_by_role("button", name="Release scope web"), f"{site.url}/holds")
    expect(window.locator("main")).to_contain_text("Nothing is held")


@pytest.mark.parametrize("path", ["/operations/1.1", "/maintenance/1", "/machines/web-0"])
def test_a_hold_is_told_and_released_beside_what_it_holds(site: Site, path: str) -> None:
    request_reboot(site.root)
    held = {"kind": "scope", "name": "web", "reason": "the backup runs"}
    assert site.root.ask("POST", "/v1/holds", held).status == 201
    page = site.root.ask("GET", path).body.decode()
    assert "the backup runs" in page
    leads = f"/orders/release?reference=scope%20web&amp;back={quote(path)}"
    assert leads in page
    body = urlencode({"reference": "scope web", "back": path}).encode()
    answer = site.root.ask("POST", "/page/orders/release", body, FORM)
    assert (answer.status, answer.headers["Location"]) == (303, path)
    assert "the backup runs" not in site.root.ask("GET", path).body.decode()


def test_an_order_leads_back_to_pages_of_ours_alone(site: Site) -> None:
    elsewhere = ("//elsewhere", "https://elsewhere", "/holds/../login")
    for number, back in enumerate(elsewhere):
        body = urlencode({"reference": f"host h{number}", "back": back}).encode()
        answer = site.root.ask("POST", "/page/orders/hold", body, FORM)
        assert (answer.status, answer.headers["Location"]) == (303, f"/machines?host=h{number}")


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


def test_only_an_admin_revokes(site: Site) -> None:
    made = site.root.ask("POST", "/v1/tokens", {"name": "bob", "role": AccessRole.OPERATOR})
    bob = Client(site.url, made.json["token"])
    headers = {**FORM, "Origin": site.url}
    body = urlencode({"reference": "bob"}).encode()
    assert bob.ask("GET", "/orders/revoke?reference=bob").status == 403
    assert bob.ask("POST", "/page/orders/revoke", body, headers).status == 403
    assert bob.ask("GET", "/v1/holds").status == 200


def test_scopes_and_hosts_are_ticked_and_a_box_filters_them(site: Site) -> None:
    placed = [{"name": f"db-{n}", "host": f"rack{n}"} for n in range(12)]
    assert site.root.ask("PUT", "/v1/fleet", {**fleet(), "machine": placed}).status == 200
    window = site.window(path="/maintenance/new?hosts=rack3%20elsewhere")
    hosts = window.locator("fieldset.ticks", has=window.locator("[name=hosts]"))
    expect(hosts.locator(":checked")).to_have_count(2)
    expect(hosts.locator("label")).to_have_count(16)
    expect(window.locator("[type=search][data-filters]")).to_have_count(1)  # scopes are few
    window.get_by_label("Filter hosts").fill("RACK1")
    expect(hosts.locator("label:visible")).to_have_text(["rack1", "rack10", "rack11"])
    window.get_by_label("rack11").check()
    with site.complaints():
        follow(window.get_by_role("button", name="Show the plan"))
    for name in ("elsewhere", "rack11", "rack3"):
        expect(hosts.locator(f"[value={name}]")).to_be_checked()
    expect(hosts.locator(":checked")).to_have_count(3)
    expect(hosts.get_by_role("alert")).to_contain_text("elsewhere")
