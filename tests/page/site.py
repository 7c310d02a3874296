"""A service, and the windows that are open on its page."""

import contextlib
import html
import re
import shutil
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect, sync_playwright

import patience
from forewarn.vocabulary import AccessRole
from server.running import Client, Running, fleet

MILLISECONDS = 1000 * patience.SECONDS
"""How long a browser may take: only the end of waiting."""

FORM = {"Content-Type": "application/x-www-form-urlencoded"}

WIDE, NARROW = (1440, 1080), (390, 844)

PROGRAM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
"""The browser without windows of its own takes less than half of the other's processor time."""

ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--renderer-process-limit=1",  # each window would start two processes
)

expect.set_options(timeout=MILLISECONDS)


def follow(to: Locator, url: str | re.Pattern[str] | None = None) -> None:
    """Click a link or a button that leads to another page, and wait until all of that is there.

    A click alone returns while the window shows the old page or the first half of the new one.

    Args:
        to: The link or the button.
        url: Address of the page; None means any.
    """
    with to.page.expect_navigation(url=url):
        to.click()


def read(client: Client, path: str, status: int = 200) -> str:
    """Return the main part of a page as the service writes it, before any script."""
    answer = client.ask("GET", path)
    assert answer.status == status, answer.body
    return answer.body.decode().partition("<main ")[2]


def links(part: str) -> dict[str, str]:
    """Return where the links of a part of a page lead, by their names."""
    found = re.findall(r'<a ([^>]*)href="([^"]*)"([^>]*)>([^<]*)</a>', part)
    names = (re.search(r'aria-label="([^"]*)"', before + after) for before, _, after, _ in found)
    texts = [each[1] if each else found[n][3] for n, each in enumerate(names)]
    return {name: html.unescape(one[1]) for name, one in zip(texts, found, strict=True)}


def references(page: str) -> list[str]:
    """Return the operations that a table of a page has, in their order."""
    return re.findall(r'<td class="name"><a [^>]*class="ref"[^>]*>([^<]*)</a>', page)


def typed_in(page: str, name: str) -> str:
    """Return what a field of a page has in it."""
    if ticked := re.findall(rf'name="{name}" value="([^"]*)" checked', page):
        return html.unescape(" ".join(ticked))
    found = re.search(rf'name="{name}"(?: value="([^"]*)"|[^>]*>([^<]*)</textarea>)', page)
    assert found is not None
    return html.unescape(found[1] if found[2] is None else found[2])


def mistaken(page: str) -> str:
    """Return the name of the one field of a page that has a mistake, which is told within it."""
    wrong = r'<(div|fieldset) class="field(?: ticks)? wrong"(.*?)</\1>'
    ((_, field),) = re.findall(wrong, page, re.DOTALL)
    assert 'aria-invalid="true"' in field
    assert 'role="alert"' in field
    (name,) = set(re.findall(r' name="(\w+)"', field))
    return str(name)


class Chromium:
    """Debian's Chromium, which starts when it is first asked for.

    Playwright has an event loop that runs in this thread until it is closed: no test that needs a
    loop of its own can share the file. A test without a Chromium is skipped.
    """

    def __init__(self) -> None:
        self._browser: Browser | None = None
        self._opened = contextlib.ExitStack()

    @property
    def browser(self) -> Browser:
        if self._browser is None:
            if PROGRAM is None:
                pytest.skip("there is no browser: install Debian's package chromium-headless-shell")
            playwright = self._opened.enter_context(sync_playwright())
            self._browser = playwright.chromium.launch(
                executable_path=PROGRAM, args=list(ARGUMENTS)
            )
            self._opened.callback(self._browser.close)
        return self._browser

    def close(self) -> None:
        self._browser = None
        self._opened.close()


class Site:
    """Opens windows; at its end no console has said anything."""

    def __init__(self, running: Running, chromium: Chromium, *, with_fleet: bool = True) -> None:
        self.running = running
        self.url = running.opened.operators[1]
        self.root = running.client()
        self.said: list[str] = []
        """What consoles said, and what the policy kept from loading."""
        self._chromium = chromium
        self._opened: list[BrowserContext] = []
        if with_fleet:
            assert self.root.ask("PUT", "/v1/fleet", fleet()).status == 200

    def __enter__(self) -> "Site":
        return self

    def __exit__(
        self, error: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        for context in self._opened:
            context.remove_listener("page", self._listen)
            context.close()
        if error is None:
            assert self.said == [], self.said

    def client(self, role: AccessRole, name: str = "") -> Client:
        """Return what asks with a new token of a role."""
        made = self.root.ask("POST", "/v1/tokens", {"name": name or str(role), "role": role})
        assert made.status == 201, made.body
        return Client(self.url, made.json["token"])

    def link(self, role: AccessRole = AccessRole.ADMIN, name: str = "") -> str:
        """Return a one-time link, of root or of a token with a role."""
        asks = self.root if role is AccessRole.ADMIN and not name else self.client(role, name)
        answer = asks.ask("POST", "/v1/tokens/page", {})
        assert answer.status == 201, answer.body
        url: str = answer.json["url"]
        return url

    def context(
        self,
        size: tuple[int, int] = WIDE,
        theme: Any = "light",
        *,
        scripts: bool = True,
        ignore_https_errors: bool = False,
    ) -> BrowserContext:
        """Return a browser that is not logged in."""
        width, height = size
        made = self._chromium.browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=theme,
            reduced_motion="reduce",
            java_script_enabled=scripts,
            ignore_https_errors=ignore_https_errors,
        )
        made.set_default_timeout(MILLISECONDS)
        made.on("page", self._listen)
        self._opened.append(made)
        return made

    def window(
        self,
        role: AccessRole = AccessRole.ADMIN,
        size: tuple[int, int] = WIDE,
        theme: Any = "light",
        *,
        path: str = "/",
    ) -> Page:
        """Return a window that is logged in and shows Now or another page, with its stream open.

        It got its cookie by a form that no browser sent, which saves a page to draw.
        """
        context = self.context(size, theme)
        form = {"Content-Type": "application/x-www-form-urlencoded", "Origin": self.url}
        body = f"token={self.link(role).partition('#')[2]}".encode()
        answer = Client(self.url).ask("POST", "/login", body, form)
        name, _, secret = answer.headers["Set-Cookie"].partition(";")[0].partition("=")
        context.add_cookies([{"name": name, "value": secret, "url": self.url}])
        page = context.new_page()
        page.goto(f"{self.url}{path}")
        expect(page.locator("#live")).to_have_attribute("data-state", "live")
        return page

    def make_busy(self) -> None:
        """Ask for maintenance that is halted, under notice, held, blocked, queued and down."""

        def ask(**body: Any) -> None:
            answer = self.root.ask("POST", "/v1/maintenances", {"event_type": "Reboot", **body})
            assert answer.status == 201, answer.body

        policy = {"check": "probe", "check_tries": 1}
        ask(event_type="Freeze", machines=["FrontEnd_IN_0"], policy=policy)
        assert self.root.ask("POST", "/v1/approvals", {"references": ["1.1"]}).status == 200
        held = {"kind": "scope", "name": "batch", "reason": "the backup runs"}
        assert self.root.ask("POST", "/v1/holds", held).status == 201
        ask(machines=["web-0"])
        ask(scopes=["batch"])
        ask(event_type="Freeze", hosts=["h2", "h1"], policy={})
        ask(machines=["web-1"])
        ask(machines=["Bastion"], no_notice=True)
        state = "/v1/maintenances/1"
        patience.until(lambda: self.root.get(state)["maintenance"]["status"] == "halted")

    @contextlib.contextmanager
    def complaints(self) -> Iterator[list[str]]:
        """Take what consoles say meanwhile: a test is about it."""
        before = len(self.said)
        taken: list[str] = []
        yield taken
        taken += self.said[before:]
        del self.said[before:]

    def _listen(self, page: Page) -> None:
        page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
