"""The page in stories of what somebody does in a window, one line each, and requests meanwhile.

A place is a role with a name (`link:Approve 1.1`), a label (`field:Name`), or the first of a CSS
selector, also with a text in it (`tr|web-0`). `quick` first has what is simulated take no time.
`opens` has a window that is logged in; lines are about the last that was opened or that a line
`returns` has named. At the end no console has said anything but what a line `complaints` has taken.
"""

import json
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

import stories
from forewarn.server.settings import SimulatedSettings
from forewarn.vocabulary import AccessRole, AgentStatus
from page.conftest import opened
from page.site import Chromium, Site, follow
from page.test_forms import MARKUP
from server.exchange import Exchanges
from server.running import fleet

QUICK = SimulatedSettings(reboot_seconds=0, freeze_seconds=0, redeploy_seconds=0)
RACKS = {**fleet(), "machine": [{"name": f"db-{n}", "host": f"rack{n}"} for n in range(12)]}
BLACK = """[...document.querySelectorAll("main svg rect")]
    .filter((each) => !each.closest("symbol, pattern"))
    .filter((each) => getComputedStyle(each).fill === "rgb(0, 0, 0)").length"""
"""How many shapes are black."""

HIDDEN = "Object.defineProperty(document, 'hidden', {get: () => !window.isShown})"
"""A browser that nobody sees calls each of its windows visible: so a script hides them."""

SHOW = "window.isShown = true; document.dispatchEvent(new Event('visibilitychange'))"


class Windows(Exchanges):
    """A story so far: a service, and the windows that are open on its page, by their names."""

    window: Page

    def __init__(self, site: Site) -> None:
        super().__init__(site.running)
        self.site = site
        self.windows: dict[str, Page] = {}
        scripts = {"BLACK": BLACK, "SHOW": SHOW}
        self.bound |= {"racks": RACKS, "markup": MARKUP, "url": site.url, **scripts}

    def quick(self) -> None:
        """Say how the service is, which is so by now."""

    # Windows.

    def opens(
        self,
        path: str = "/",
        name: str = "window",
        role: str = "admin",
        size: str = "1440x1080",
        theme: str = "light",
    ) -> None:
        """Open a window that is logged in and shows a page, with its stream open."""
        width, height = map(int, size.split("x"))
        shown = self.site.window(AccessRole(role), (width, height), theme, path=path)
        self.window = self.windows[name] = shown

    def strange_window(self, scripts: str = "yes") -> None:
        """Open a window that is not logged in."""
        self.window = self.site.context(scripts=scripts == "yes").new_page()

    def another(self, name: str, hidden: str = "") -> None:
        """Open another window of the same browser, which nobody sees."""
        self.window = self.windows[name] = self.window.context.new_page()
        if hidden:
            self.window.add_init_script(HIDDEN)

    def returns(self, name: str) -> None:
        """Go on in another window."""
        self.window = self.windows[name]

    def link(self, name: str, role: str = "admin") -> None:
        """Bind a link that logs in, and what is in its fragment."""
        self.bound[name] = self.site.link(AccessRole(role))
        self.bound[f"{name}_key"] = self.bound[name].partition("#")[2]

    def saw_agent(self, machine: str, agent: str, reason: str) -> None:
        self.service.guests.saw(machine, agent=AgentStatus(agent), reason=reason)

    # What somebody does.

    def find(self, place: str) -> Locator:
        """Return a place of the window."""
        place = self.spelled(place)
        kind, _, name = place.partition(":")
        match kind:
            case "link" | "button" | "checkbox" | "textbox":
                return self.window.get_by_role(kind, name=name, exact=kind == "textbox")
            case "field":
                return self.window.get_by_label(name)
        css, _, text = place.partition("|")
        return self.window.locator(css, has_text=text or None).first

    def address(self, path: str) -> str:
        path = self.spelled(path)
        return path if path.startswith("http") else f"{self.site.url}{path}"

    def goes(self, path: str) -> None:
        self.window.goto(self.address(path))

    def reloads(self) -> None:
        self.window.reload()

    def arrives(self, path: str) -> None:
        """Wait until the window is led there."""
        self.window.wait_for_url(self.address(path))

    def plans(self, path: str, **texts: str) -> None:
        """Fill in the form of a maintenance, by its fields' names, and ask for the plan."""
        self.goes(path)
        groups = "form => form.querySelectorAll('details').forEach(each => { each.open = true; })"
        self.window.locator("main form").evaluate(groups)
        for name, text in texts.items():
            field = self.window.locator(f"[name={name}]")
            if field.first.get_attribute("type") == "checkbox":
                for value in text.split():
                    self.window.locator(f"[name={name}][value='{value}']").check()
            elif field.evaluate("each => each.tagName") == "SELECT":
                field.select_option(text)
            else:
                field.fill(text)
        follow(self.window.get_by_role("button", name="Show the plan"))

    def clicks(self, place: str) -> None:
        self.find(place).click()

    def follows(self, place: str, path: str = "") -> None:
        """Click what leads to another page, and wait for that."""
        follow(self.find(place), self.address(path) if path else None)

    def fills(self, place: str, text: str) -> None:
        self.find(place).fill(self.spelled(text))

    def selects(self, place: str, value: str) -> None:
        self.find(place).select_option(value)

    def ticks(self, place: str) -> None:
        self.find(place).check()

    def focuses(self, place: str) -> None:
        self.find(place).focus()

    def presses(self, *keys: str) -> None:
        for key in keys:
            self.window.keyboard.press(key)

    def sends(self, key: str) -> None:
        """Press a key that leads to another page."""
        with self.window.expect_navigation():
            self.window.keyboard.press(key)

    def types(self, text: str) -> None:
        self.window.keyboard.type(text)

    def tabs_to(self, place: str) -> None:
        """Press Tab until it is there, a few times at most."""
        for _ in range(20):
            self.window.keyboard.press("Tab")
            if self.find(place).evaluate("each => each === document.activeElement"):
                return
        raise AssertionError(place)

    def runs(self, script: str) -> None:
        """Run a script in the window."""
        self.window.evaluate(self.spelled(script))

    # What he sees.

    def sees(self, place: str, *texts: str) -> None:
        """See a place, with these texts in it; changes come by the live stream."""
        found = self.find(place)
        if not texts:
            expect(found).to_be_visible()
        for text in texts:
            expect(found).to_contain_text(self.spelled(text))

    def reads(self, place: str, *texts: str) -> None:
        """Read these texts at all places of a selector, and nothing else there."""
        expect(self.window.locator(place)).to_have_text([self.spelled(text) for text in texts])

    def counts(self, place: str, number: str) -> None:
        expect(self.window.locator(place)).to_have_count(int(number))

    def misses(self, place: str) -> None:
        """See no such place."""
        expect(self.find(place)).to_be_hidden()

    def is_focused(self, place: str) -> None:
        expect(self.find(place)).to_be_focused()

    def is_checked(self, place: str) -> None:
        expect(self.find(place)).to_be_checked()

    def has_value(self, place: str, text: str) -> None:
        expect(self.find(place)).to_have_value(text)

    def has(self, place: str, attribute: str, value: str) -> None:
        expect(self.find(place)).to_have_attribute(attribute, self.spelled(value))

    def binds(self, name: str, place: str, attribute: str = "") -> None:
        """Bind the text of a place, or the last word of an attribute's path."""
        found = self.find(place)
        told = found.get_attribute(attribute) if attribute else found.inner_text()
        self.bound[name] = str(told).rpartition("/")[2]

    def knows(self, script: str, expected: str) -> None:
        """Compare what a script finds out."""
        assert self.window.evaluate(self.spelled(script)) == json.loads(self.spelled(expected))

    def complaints(self, of: str = "") -> None:
        """Take what consoles have said by now, of which nothing is of the policy if that is so."""
        assert of != "no-policy" or not [each for each in self.site.said if "Policy" in each]
        self.site.said.clear()


@pytest.mark.parametrize("rows", stories.stories_beside(__file__, "windows.txt"))
def test_the_story_holds(tmp_path: Path, chromium: Chromium, rows: stories.Rows) -> None:
    simulated = QUICK if "quick" in [row for _, row in rows] else None
    with opened(tmp_path, chromium, simulated) as site:
        assert Windows(site).play("windows.txt", rows)
