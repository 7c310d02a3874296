"""Machines, their documents and the history, as the service writes them."""

import csv
import html
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import web
from forewarn.protocol.versions import VERSION_BY_NAME
from forewarn.server.operator import schemas
from forewarn.server.page import history
from forewarn.store.sqlite import InMemoryStore
from page.site import Site, links, read, references
from relay_plane.served import Served
from server.running import fleet, request_reboot, settings_in


def test_the_page_shows_what_each_machine_reads(tmp_path: Path) -> None:
    with Served(settings_in(tmp_path, listen="127.0.0.1:0"), InMemoryStore()) as running:
        root = running.client()
        port = int(running.opened.guests[0].rpartition(":")[2])
        assert root.ask("PUT", "/v1/fleet", fleet()).status == 200
        request_reboot(root, description="<script>")
        request_reboot(root, machines=["batch_0"], event_type="Preempt")
        request_reboot(root, machines=["FrontEnd_IN_0"], event_type="Freeze")
        for machine in ("web-0", "batch_0", "Bastion", "FrontEnd_IN_0"):
            page = read(root, f"/machines/{machine}")
            shown = re.findall(r'id="document-([^"]*)">.*?<pre[^>]*>([^<]*)</pre>', page, re.DOTALL)
            assert {name for name, _ in shown} == {*VERSION_BY_NAME}
            for version, text in shown:
                path = f"/vm/{machine}/metadata/scheduledevents?api-version={version}"
                served = web.ask(port, path).body
                assert json.loads(html.unescape(text)) == json.loads(served), (machine, version)
                file = f"/machines/{machine}/document?version={version}"
                assert root.ask("GET", file).body.decode() == served


@pytest.mark.parametrize(
    ("value", "written"),
    [(None, ""), (-1, "-1"), (0.5, "0.5"), ("-x", "'-x"), ("@a", "'@a"), ("web-0", "web-0")],
)
def test_a_cell_keeps_numbers_as_they_are(value: object, written: str) -> None:
    assert history.cell(value) == written


def test_a_long_history_comes_in_pages_and_its_file_has_all_that_the_api_has(site: Site) -> None:
    count = 57
    for number in range(1, count + 1):
        request_reboot(site.root, machines=["web-1"])
        cancelled = {"references": [str(number)]}
        assert site.root.ask("POST", "/v1/cancellations", cancelled).status == 200
    found = [f"{number}.1" for number in range(count, 0, -1)]
    first = read(site.root, "/history")
    assert references(first) == found[:50]
    assert references(read(site.root, links(first)["Next page"])) == found[50:]
    answer = site.root.ask("GET", "/history?file=csv")
    rows = list(csv.DictReader(io.StringIO(answer.body.decode(), newline="")))
    known = site.root.get("/v1/history?limit=100")["operations"]
    assert [row["operation"] for row in rows] == [one["id"] for one in known] == found
    row, one = rows[0], known[0]
    (event,) = one["events"]
    assert tuple(row) == history.COLUMNS
    assert (row["type"], row["status"]) == (one["event_type"], one["status"])
    assert row["machines"] == " ".join(event["machines"])
    assert (row["event"], row["scope"]) == (event["id"], event["scope"])
    assert row["announced_at"] == one["announced_at"][:23].rstrip("Z") + "Z"


async def test_a_file_whose_reader_may_read_no_more_says_that_its_end_is_missing() -> None:
    async def beside(work: Callable[..., Any], *given: Any) -> Any:
        return work(*given)

    page: Any = SimpleNamespace(
        backend=SimpleNamespace(beside=beside), call=SimpleNamespace(is_valid=lambda: False)
    )
    read: Any = None  # nothing more is read
    found = schemas.HistoryPage(operations=(), next="more")
    *_, last = [part async for part in history._exported(page, read, found)]
    assert b"missing" in last
