"""A real process whose proxies get another secret: SIGHUP reads it, and ends it at a terminal."""

import os
import pty
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import web
from end_to_end.running import Running
from forewarn.protocol import exchange
from patience import until

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8 without being told"
)

EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
SECRET, NEW = "the first secret of the proxies", "the second secret of the proxies"
PROXY = "127.0.0.7"
FLEET = '[[machine]]\nname = "web-0"\n'


class Service(Running):
    """A service with a listener for proxies."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.secret = folder / "proxy.secret"
        self.put(SECRET)
        listener = (
            f'port = {self.guest_port}\ntrusted_proxies = ["{PROXY}/32"]\n'
            'proxy_secret_files = ["proxy.secret"]\nproxy_without_header = true\n'
        )
        text = self.settings.read_text()
        self.settings.write_text(text.replace(f"port = {self.guest_port}\n", listener))

    def put(self, secret: str) -> None:
        self.secret.write_text(secret + "\n")
        self.secret.chmod(0o640)


@pytest.fixture
def service(folder: Path) -> Iterator[Service]:
    with Service(folder) as made:
        made.apply(FLEET)
        yield made


def test_at_a_terminal_a_hangup_ends_the_service(folder: Path) -> None:
    service = Service(folder)
    master, slave = pty.openpty()
    service.start(errors=slave)
    os.close(slave)
    try:
        service.reload()
        assert service.ended() == -signal.SIGHUP
    finally:
        os.close(master)


def test_a_secret_is_changed_without_a_restart(service: Service) -> None:
    def status(secret: str) -> int:
        """Ask as the proxy, for web-0, with a signature by this secret."""
        signature = exchange.sign(b"web-0", secret.encode()).decode()
        said = {"X-Instance-ID": "web-0", "X-Instance-ID-Signature": signature}
        headers = web.METADATA | said
        return web.ask(service.guest_port, EVENTS, headers=headers, source=PROXY).status

    assert (status(SECRET), status(NEW)) == (200, 403)
    service.put(NEW)
    service.reload()
    until(lambda: status(NEW) == 200, service.log.read_text)
    assert status(SECRET) == 403
    service.secret.chmod(0o644)
    service.reload()
    until(lambda: "has mode 0644" in service.log.read_text())
    assert status(NEW) == 200
