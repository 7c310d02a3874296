"""Now after two hours of maintenance over some 500 machines, as Chromium draws it.

With IMAGES=docs/images in the environment, the pictures of the docs are made.
"""

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from playwright.sync_api import Browser, Page, expect

from forewarn.clock import ManualClock
from forewarn.maintenance.model import key
from forewarn.server.settings import ConnectorSettings, SimulatedSettings
from forewarn.vocabulary import AccessRole
from page.evening import Evening
from page.site import NARROW, WIDE, Site
from server.running import Running, settings_in

SEED = 34
SILENT = 17
"""Every so many machines one does not ask."""

OVERLAPS = """() => {
  const found = [];
  for (const lane of document.querySelectorAll(".lane svg")) {
    const texts = [...lane.querySelectorAll(".event text")]
      .filter((each) => getComputedStyle(each).display !== "none")
      .map((each) => [each.textContent, each.getBoundingClientRect()]);
    texts.forEach(([name, box], n) => {
      for (const [other, at] of texts.slice(n + 1))
        if (box.left < at.right && at.left < box.right
            && box.top + 3 < at.bottom && at.top + 3 < box.bottom)
          found.push(`${name} and ${other}`);
    });
  }
  return found;
}"""
"""Labels of the timeline that lie over one another."""

OVERFLOWS = """() => document.documentElement.scrollWidth - innerWidth"""


@pytest.fixture(scope="module")
def evening() -> Evening:
    return Evening(SEED)


@pytest.fixture
def town(tmp_path: Path, browser: Browser, evening: Evening) -> Iterator[Site]:
    """A service that goes on from the end of a copy of the evening."""
    played = Evening(SEED) if evening.store.all_settings else evening
    wanted = msgspec.structs.replace(
        settings_in(tmp_path, listen="127.0.0.1:0"),
        # What was under way stays so: the clock stands.
        connector=ConnectorSettings(
            simulated=SimulatedSettings(
                freeze_seconds=3600, reboot_seconds=3600, redeploy_seconds=3600
            )
        ),
    )
    with Running(wanted, played.store, ManualClock(played.now)) as running:
        for number, name in enumerate(played.store.all_machines):
            if number % SILENT:
                running.guests.saw(key(name), at=played.now - timedelta(seconds=20))
        with Site(running, browser, with_fleet=False) as opened:
            yield opened


def pictured(window: Page, name: str) -> None:
    folder = os.environ.get("IMAGES")
    if folder:
        window.screenshot(path=Path(folder) / f"page-{name}.png")


@pytest.mark.parametrize(
    ("name", "size", "theme"),
    [("now-light", WIDE, "light"), ("now-dark", WIDE, "dark"), ("now-390", NARROW, "light")],
)
def test_nothing_overlaps_and_nothing_overflows(
    town: Site, name: str, size: tuple[int, int], theme: Any
) -> None:
    window = town.window(AccessRole.VIEWER, size, theme)
    expect(window.locator(".timeline .event").first).to_be_visible()
    assert window.evaluate(OVERFLOWS) <= 0
    assert window.evaluate(OVERLAPS) == []
    pictured(window, name)
    for shown in ("12 h", "Day", "Week"):
        window.locator(".ranges").get_by_role("link", name=shown).click()
        expect(window.locator(".ranges [aria-current]")).to_have_text(shown)
        assert window.evaluate(OVERLAPS) == []


def test_what_is_live_is_drawn_and_counted(town: Site) -> None:
    window = town.window(AccessRole.VIEWER)
    live = {event["operation"] for event in town.root.get("/v1/events")["events"]}
    drawn = window.eval_on_selector_all(
        ".event:not(.done):not(.failed):not(.cancelled)",
        "(all) => all.map((each) => each.getAttribute('href').split('/').pop())",
    )
    over = {"Completed", "Failed"}
    known = town.root.get("/v1/history?limit=1000")["operations"]
    expected = {o["id"] for o in known if o["id"] in live and o["status"] not in over}
    assert set(drawn) == expected
    down = {m for o in known if o["status"] in {"Started", "Returning"} for m in machines(o)}
    tile = window.locator(".tile", has_text="machines down")
    expect(tile.locator(".figure")).to_have_text(str(len(down)))


def machines(operation: dict[str, Any]) -> set[str]:
    return {name for event in operation["events"] for name in event["machines"]}


def test_a_bar_opens_its_operation_beside_the_page(town: Site) -> None:
    window = town.window(AccessRole.VIEWER)
    bar = window.locator(".event.notice").first
    reference = str(bar.get_attribute("href")).rpartition("/")[2]
    bar.locator("rect").first.click()
    expect(window.locator("#panel h2")).to_contain_text(reference)
    expect(window.locator(".timeline")).to_be_visible()


def test_a_change_is_drawn_by_itself_and_the_range_stays(town: Site) -> None:
    window = town.window(AccessRole.VIEWER)
    window.locator(".ranges").get_by_role("link", name="12 h").click()
    bar = window.locator(".event.notice").first
    reference = str(bar.get_attribute("href")).rpartition("/")[2]
    expect(window.locator("#live")).to_have_attribute("data-state", "live")
    answer = town.root.ask("POST", "/v1/cancellations", {"references": [reference]})
    assert answer.status == 200, answer.body
    expect(window.locator(f'.event.cancelled[href="/operations/{reference}"]')).to_be_attached()
    expect(window.locator(".ranges [aria-current]")).to_have_text("12 h")
