"""The page and the API behind a proxy that ends TLS: docs/guides/page.md's nginx, in Chromium."""

from pathlib import Path

import pytest
from playwright.sync_api import expect

from end_to_end import nginx
from forewarn.store.sqlite import InMemoryStore
from page.site import Chromium, Site, follow
from ports import free_port
from recipes import pages
from server.running import Running, request_reboot, settings_in

pytestmark = pytest.mark.skipif(nginx.NGINX is None, reason="nginx is not installed")

CERTIFICATES = Path(__file__).parents[1] / "operator" / "certificates"
NAME = "ops.localhost"
"""Chromium finds it at 127.0.0.1 without asking."""

WINDOWS = 7
"""One more than a browser has connections to one origin by HTTP/1.1."""


def test_windows_follow_changes_and_forms_do_what_they_say(
    tmp_path: Path, chromium: Chromium
) -> None:
    port, own = free_port(), free_port()
    url = f"https://{NAME}:{port}"
    wanted = settings_in(tmp_path, listen=f"127.0.0.1:{own}", hosts=[url])
    block = pages.placed(
        pages.block("page", "nginx", "ssl"),
        {
            "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
            "ops.example;": f"{NAME};",
            "/etc/nginx/ops.example.crt": str(CERTIFICATES / "first.pem"),
            "/etc/nginx/ops.example.key": str(CERTIFICATES / "first.key"),
            "127.0.0.1:8172": f"127.0.0.1:{own}",
        },
    )
    with (
        Running(wanted, InMemoryStore()) as running,
        nginx.serving(tmp_path, block, "127.0.0.1", port),
        Site(running, chromium) as site,
    ):
        context = site.context(ignore_https_errors=True)
        first, *others = windows = [context.new_page() for _ in range(WINDOWS)]
        link = site.link()
        assert link.startswith(f"{url}/login#")
        first.goto(link)
        first.wait_for_url(f"{url}/")
        (cookie,) = context.cookies()
        assert cookie["secure"]
        assert cookie["name"] == f"forewarn-{port}"
        for window in others:
            window.goto(url)
        for window in windows:
            expect(window.locator("#live")).to_have_attribute("data-state", "live")
        request_reboot(site.root)
        for window in windows:
            expect(window.locator("main")).to_contain_text("1.1")
        first.goto(f"{url}/orders/cancel?reference=1")
        follow(first.get_by_role("button", name="Cancel maintenance 1"), f"{url}/maintenance/1")
        expect(first.locator("main > .head")).to_contain_text("cancelled")
