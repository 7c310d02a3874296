"""Machines, their documents and the history in a browser."""

import csv
import http.client
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from forewarn.clock import ManualClock
from forewarn.protocol.versions import VERSION_BY_NAME
from forewarn.server.page import history
from forewarn.store.sqlite import InMemoryStore
from forewarn.vocabulary import AgentStatus
from page.site import Contexts, Site, follow
from relay_plane.served import Served
from server.running import NOON, Running, request_reboot, settings_in


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("q=h1", ["batch_0", "web-1"]),
        ("q=10.0.3", ["Bastion"]),
        ("scope=WEB", ["web-0", "web-1", "web-2"]),
        ("scope=web&q=-2", ["web-2"]),
        ("host=h1", ["batch_0", "web-1"]),
        ("host=unknown", ["Bastion"]),
        ("q=nosuch", []),
        ("q=%3Cscript%3E", []),
    ],
)
def test_machines_are_found_by_what_they_are_called_and_where_they_are(
    unchanged: Site, query: str, names: list[str]
) -> None:
    answer = unchanged.root.ask("GET", f"/machines?{query}")
    assert answer.status == 200
    assert (
        re.findall(r'<tr>\s*<td class="name"><a [^>]*>([^<]*)</a></td>', answer.body.decode())
        == names
    )


def test_many_hosts_come_in_pages_and_one_is_found_by_a_part_of_its_name(site: Site) -> None:
    hosts = [f"räck{n:03}{'ä' * 240}" for n in range(60)]
    more = [{"name": f"m{n}", "host": host} for n, host in enumerate(hosts)]
    assert site.root.ask("PUT", "/v1/fleet", {"machine": more}).status == 200
    window = site.window(path="/hosts")
    names = window.locator("tbody td.name")
    expect(names).to_have_text(["h0", "h1", "h2", *hosts[:47]])
    follow(window.get_by_role("link", name="Next page"), re.compile("cursor="))
    expect(names).to_have_text(hosts[47:])
    expect(window.get_by_role("link", name="Next page")).to_have_count(0)
    window.get_by_label("Part of a name").fill("ÄCK01")
    follow(window.get_by_role("button", name="Find"), re.compile("q="))
    expect(names).to_have_text(hosts[10:20])


def test_a_scope_is_held_though_the_host_beside_it_is(site: Site) -> None:
    assert site.root.ask("POST", "/v1/holds", {"kind": "host", "name": "h1"}).status == 201
    window = site.window(path="/machines?scope=web&host=h1")
    main = window.locator("main")
    expect(main).to_contain_text("Held: host h1")
    expect(main.get_by_role("link", name="Release scope web")).to_have_count(0)
    follow(main.get_by_role("link", name="Hold scope web"))
    follow(main.locator("form").get_by_role("button", name="Hold"), re.compile("scope=web"))
    expect(main.get_by_role("link", name="Release scope web")).to_have_count(1)


def test_a_machine_tells_its_facts_and_its_agents_word(site: Site) -> None:
    site.running.guests.saw("web-0", agent=AgentStatus.HELD, reason="<b>12 connections</b>")
    request_reboot(site.root)
    window = site.window(path="/machines/web-0")
    main = window.locator("main")
    for fact in ("h0", "10.0.0.10", "availability set", "held: <b>12 connections</b>", "1.1"):
        expect(main).to_contain_text(fact)
    window.get_by_role("link", name="1.1").first.click()  # opens the panel
    expect(window.locator("#panel")).to_contain_text("web-0")


def test_a_machine_has_its_past(quick_site: Site) -> None:
    site = quick_site
    request_reboot(site.root)
    window = site.window(path="/machines/web-0")
    latest = window.locator("section", has=window.get_by_role("heading", name="Latest"))
    expect(latest).to_contain_text("Nothing finished")
    assert site.root.ask("POST", "/v1/approvals", {"references": ["1"]}).status == 200
    expect(latest.locator("tbody tr")).to_contain_text("done")  # by the live stream


@pytest.mark.parametrize("path", ["nosuch", "nosuch/document", "web-0/document?version=1"])
def test_what_is_not_there_is_a_page_that_says_so(unchanged: Site, path: str) -> None:
    answer = unchanged.root.ask("GET", f"/machines/{path}")
    assert answer.status == 404
    assert "<h1>Not found</h1>" in answer.body.decode()


def test_times_have_the_readers_own_beside_utc(site: Site) -> None:
    request_reboot(site.root)
    window = site.window(path="/machines/web-0")
    moment = window.locator("main td time").first
    written = str(moment.get_attribute("datetime"))
    title = str(moment.get_attribute("title"))
    assert title.startswith(f"{written} · ")
    assert title != f"{written} · "


class Guarded(Served):
    """A service with a guest plane that guests can ask."""

    def read(self, machine: str, version: str) -> bytes:
        """Ask for a machine's document, as it does."""
        connection = http.client.HTTPConnection(self.opened.guests[0].removeprefix("http://"))
        path = f"/vm/{machine}/metadata/scheduledevents?api-version={version}"
        connection.request("GET", path, headers={"Metadata": "true"})
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        assert answer.status == 200, body
        return body


def test_the_page_shows_what_each_machine_reads(tmp_path: Path, contexts: Contexts) -> None:
    wanted = settings_in(tmp_path, listen="127.0.0.1:0")
    with Guarded(wanted, InMemoryStore()) as running, Site(running, contexts) as site:
        request_reboot(site.root, description="<script>")
        request_reboot(site.root, machines=["batch_0"], event_type="Preempt")
        request_reboot(site.root, machines=["FrontEnd_IN_0"], event_type="Freeze")
        window = site.window()
        for machine in ("web-0", "batch_0", "Bastion", "FrontEnd_IN_0"):
            window.goto(f"{site.url}/machines/{machine}")
            for version in VERSION_BY_NAME:
                read = running.read(machine, version)
                shown = window.locator(f"#document-{version} pre").text_content()
                assert json.loads(str(shown)) == json.loads(read), (machine, version)
                address = f"{site.url}/machines/{machine}/document?version={version}"
                assert window.request.get(address).body() == read


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


def test_an_operation_that_is_over_has_its_page(past: Site) -> None:
    answer = past.root.ask("GET", "/operations/2.1")
    assert answer.status == 200
    assert "not today" in answer.body.decode()


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
