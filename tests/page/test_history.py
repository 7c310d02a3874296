"""The history in a browser: its filters, its pages, and its files."""

import csv
import io
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from forewarn.clock import ManualClock
from forewarn.server.page import history
from forewarn.store.sqlite import InMemoryStore
from page.site import Contexts, Site, follow
from server.running import NOON, Running, request_reboot, settings_in

FORMULA = "=HYPERLINK(1)"


def some(site: Site) -> None:
    """Ask for maintenance of several kinds; the last one is cancelled."""
    request_reboot(site.root, description=FORMULA)
    request_reboot(site.root, machines=["Bastion"], event_type="Freeze")
    request_reboot(site.root, machines=["batch_0"], event_type="Preempt", description='a, "b"')
    cancelled = {"references": ["2"], "reason": "not today\u2028"}
    assert site.root.ask("POST", "/v1/cancellations", cancelled).status == 400
    cancelled["reason"] = "not today"
    assert site.root.ask("POST", "/v1/cancellations", cancelled).status == 200


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory, contexts: Contexts) -> Iterator[Site]:
    """A site whose history tests only read. Its time stands still: no notice gets shorter."""
    wanted = settings_in(tmp_path_factory.mktemp("past"), listen="127.0.0.1:0")
    store, clock = InMemoryStore(), ManualClock(NOON)
    with Running(wanted, store, clock) as running, Site(running, contexts) as opened:
        some(opened)
        yield opened


@pytest.fixture(scope="module")
def reader(past: Site) -> Page:
    return past.window()


def shows(window: Page, references: list[str]) -> None:
    expect(window.locator("tbody td.name .ref")).to_have_text(references)


def file(window: Page, site: Site, query: str = "") -> list[dict[str, str]]:
    """Return a file as a program reads it."""
    answer = window.request.get(f"{site.url}/history?{query}&file=csv")
    assert answer.status == 200
    assert "forewarn-history.csv" in answer.headers["content-disposition"]
    return list(csv.DictReader(io.StringIO(answer.body().decode(), newline="")))


@pytest.mark.parametrize(
    ("query", "references"),
    [
        ("", ["3.1", "2.1", "1.1"]),
        ("machine=WEB-0", ["1.1"]),
        ("scope=batch", ["3.1"]),
        ("maintenance=2", ["2.1"]),
        ("event_type=Freeze&event_type=Reboot", ["2.1", "1.1"]),
        ("status=Canceled", ["2.1"]),
        ("since=-1h", ["3.1", "2.1", "1.1"]),
        ("until=-1h", []),
    ],
)
def test_the_filters_are_those_of_the_api(
    past: Site, reader: Page, query: str, references: list[str]
) -> None:
    reader.goto(f"{past.url}/history?{query}")
    shows(reader, references)
    assert [row["operation"] for row in file(reader, past, query)] == references


def test_a_filter_is_filled_in_and_stays_filled_in(past: Site, reader: Page) -> None:
    window = reader
    window.goto(f"{past.url}/history")
    window.get_by_role("textbox", name="Machine", exact=True).fill("bastion")
    window.get_by_label("Canceled").check()
    follow(window.get_by_role("button", name="Filter"), re.compile("status=Canceled"))
    shows(window, ["2.1"])
    expect(window.get_by_role("textbox", name="Machine", exact=True)).to_have_value("bastion")
    expect(window.get_by_label("Canceled")).to_be_checked()
    with window.expect_download() as download:
        window.get_by_role("link", name="CSV").click()  # a file
    with download.value.path().open(newline="", encoding="utf-8") as read:
        (row,) = csv.DictReader(read)
    assert row["operation"] == "2.1"


def test_a_filter_that_cannot_be_read_says_so_beside_it(past: Site, reader: Page) -> None:
    with past.complaints():
        reader.goto(f"{past.url}/history?since=soon")
        expect(reader.locator(".field.wrong [name=since]")).to_have_value("soon")
        reader.goto(f"{past.url}/history")  # a page that stays open asks again, and is refused


def test_the_file_has_what_the_api_has(past: Site, reader: Page) -> None:
    known = {one["id"]: one for one in past.root.get("/v1/history")["operations"]}
    for row in file(reader, past):
        one = known[row["operation"]]
        (event,) = one["events"]
        assert tuple(row) == history.COLUMNS
        assert (row["type"], row["status"]) == (one["event_type"], one["status"])
        assert row["machines"] == " ".join(event["machines"])
        assert (row["event"], row["scope"]) == (event["id"], event["scope"])
        assert row["announced_at"] == one["announced_at"][:23].rstrip("Z") + "Z"
        assert row["description"].removeprefix("'") == one["description"]
        assert row["outcome"] == one["outcome"]


def test_a_text_that_a_spreadsheet_would_calculate_is_only_text(past: Site, reader: Page) -> None:
    first = file(reader, past)[-1]
    assert first["description"] == f"'{FORMULA}"


@pytest.mark.parametrize(
    ("value", "written"),
    [(None, ""), (-1, "-1"), (0.5, "0.5"), ("-x", "'-x"), ("@a", "'@a"), ("web-0", "web-0")],
)
def test_a_cell_keeps_numbers_as_they_are(value: object, written: str) -> None:
    assert history.cell(value) == written


def test_a_long_history_comes_in_pages_and_its_file_has_all_of_it(site: Site) -> None:
    count = 60
    for _ in range(count):
        number = request_reboot(site.root, machines=["web-0"])["maintenance"]["number"]
        assert (
            site.root.ask("POST", "/v1/cancellations", {"references": [str(number)]}).status == 200
        )
    window = site.window(path="/history")
    found = [f"{number}.1" for number in range(count, 0, -1)]
    shows(window, found[:50])
    follow(window.get_by_role("link", name="Next page"), re.compile("cursor="))
    shows(window, found[50:])
    assert [row["operation"] for row in file(window, site)] == found


def test_the_audit_log_tells_who_asked_what(site: Site) -> None:
    request_reboot(site.root)
    window = site.window(path="/audit")
    row = window.get_by_role("row").filter(has_text="asked for")
    expect(row).to_contain_text("maintenance 1: Reboot of web-0")
    window.get_by_label("By").fill("nobody")
    follow(window.get_by_role("button", name="Filter"))
    expect(window.locator(".empty")).to_be_visible()
