"""A link logs one browser in, once, as whoever asked for it."""

from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

import patience
from forewarn.vocabulary import AccessRole
from page.site import Site


def test_a_link_logs_in_whoever_asked_for_it(site: Site) -> None:
    window = site.context().new_page()
    asked: list[str] = []
    window.on("request", lambda request: asked.append(f"{request.url} {request.all_headers()}"))
    link = site.link(AccessRole.VIEWER)
    window.goto(link)
    window.wait_for_url(f"{site.url}/")
    secret = link.partition("#")[2]
    assert secret
    assert not [each for each in asked if secret in each.replace(link, "")]
    expect(window.locator("#live")).to_have_attribute("data-state", "live")
    expect(window.locator(".who")).to_contain_text("viewer")
    (cookie,) = window.context.cookies()
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Strict"
    assert cookie["value"] != secret
    window.go_back()
    assert secret not in window.url


def test_a_link_is_good_once(site: Site) -> None:
    link = site.link()
    first = site.context().new_page()
    first.goto(link)
    first.wait_for_url(f"{site.url}/")
    second = site.context().new_page()
    with site.complaints():  # Chromium tells of the 401
        second.goto(link)
        expect(second.locator("h1")).to_have_text("Unauthorized")
        second.goto(site.url)
        second.wait_for_url(f"{site.url}/login")


def test_logging_out_ends_the_token_for_the_service_too(site: Site) -> None:
    window = site.window()
    cookies = window.context.cookies()
    window.locator(".who summary").click()
    with site.complaints():  # of a request that was under way
        window.get_by_role("button", name="Log out").click()  # or the stream's end leads there
        window.wait_for_url(f"{site.url}/login")
        # The stream's end leads the first window there too, and would cut off where it goes next.
        another = window.context.new_page()
        window.close()
    assert site.root.get("/v1/tokens")["tokens"] == []
    another.context.add_cookies([dict(each) for each in cookies])  # type: ignore[arg-type]
    another.goto(site.url)
    another.wait_for_url(f"{site.url}/login")


def test_the_page_ends_with_the_token_that_opened_it(site: Site) -> None:
    window = site.window(AccessRole.OPERATOR)
    with site.complaints():
        assert site.root.ask("DELETE", "/v1/tokens?name=operator").status == 200
        window.wait_for_url(f"{site.url}/login")  # the stream tells the page
    assert site.root.get("/v1/tokens")["tokens"] == []


def test_a_link_works_in_a_window_that_shows_the_log_in_or_its_refusal(site: Site) -> None:
    window = site.context().new_page()
    window.goto(f"{site.url}/login")
    with site.complaints():  # Chromium tells of the 401
        window.evaluate("location.assign('/login#spent')")
        expect(window.locator("h1")).to_have_text("Unauthorized")
    window.evaluate("link => location.assign(link)", site.link())
    expect(window).to_have_url(f"{site.url}/")


@pytest.mark.parametrize("origin", [None, "http://elsewhere.example"])
def test_a_form_of_another_origin_is_refused(site: Site, origin: str | None) -> None:
    key = site.link().partition("#")[2]
    connection = HTTPConnection(str(urlsplit(site.url).netloc), timeout=patience.SECONDS)
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    connection.request(
        "POST", "/login", f"token={key}", headers | ({"Origin": origin} if origin else {})
    )
    answer = connection.getresponse()
    assert answer.status == 403
    assert answer.getheader("Set-Cookie") is None
    connection.close()
