"""The service as a process, the command line that logs in, and what it does in an open window."""

import os
from pathlib import Path

from playwright.sync_api import Browser, ConsoleMessage, expect

from end_to_end.running import Running
from page.site import MILLISECONDS
from ports import free_port
from server.running import ME, Client

FLEET = """
[[availability_set]]
name = "web"
update_domains = 2
machines = [
  { name = "web-0", host = "h1", address = "10.0.0.10" },
  { name = "web-1", host = "h2", address = "10.0.0.11" },
]
"""


def test_the_command_lines_link_opens_a_window_that_shows_what_it_does_next(
    tmp_path: Path, browser: Browser
) -> None:
    port = free_port()
    service = Running(tmp_path, operator=f'listen = "127.0.0.1:{port}"')
    service.start()
    context = browser.new_context()
    context.set_default_timeout(MILLISECONDS)
    said: list[str] = []

    def note(message: ConsoleMessage) -> None:
        said.append(message.text)

    try:
        service.apply(FLEET)
        printed = service.call("page")
        assert printed.returncode == 0, printed.stderr
        (link,) = printed.stdout.split()
        assert link.startswith(f"http://127.0.0.1:{port}/login#")
        window = context.new_page()
        window.on("console", note)
        window.goto(link)
        window.wait_for_url(f"http://127.0.0.1:{port}/")
        expect(window.locator(".who")).to_contain_text(ME)
        expect(window.locator("#live")).to_have_attribute("data-state", "live")
        window.evaluate("window.before = true")
        assert service.call("schedule", "reboot", "web-0").returncode == 0
        expect(window.locator(".next")).to_contain_text("web-0")
        assert service.call("approve", "1.1").returncode == 0
        expect(window.locator(".next")).not_to_contain_text("1.1")
        assert window.evaluate("window.before")
        assert said == []
        assert service.stop() == 0  # an open page does not hold it up
    finally:
        context.close()
        service.kill()


def test_a_token_gives_a_link_with_its_own_name_and_role(tmp_path: Path) -> None:
    port = free_port()
    service = Running(tmp_path, operator=f'listen = "127.0.0.1:{port}"')
    service.start()
    try:
        made = service.call("token", "create", "ann", "--role", "viewer")
        token = tmp_path / "ann.token"
        token.write_text(made.stdout)
        token.chmod(0o600)
        shown = service.call(
            *("page", "--json", "--operator", f"127.0.0.1:{port}"),
            FOREWARN_SET_OPERATOR__TOKEN_FILE=os.fspath(token),
        )
        assert shown.returncode == 0, shown.stderr
        assert '"created_by": "ann"' in shown.stdout
        assert '"role": "viewer"' in shown.stdout
        refused = Client(f"http://127.0.0.1:{port}").ask("POST", "/v1/tokens/page", {})
        assert refused.status == 401
    finally:
        assert service.stop() == 0
