"""A browser's token and its link are every replica's, and their end is everywhere."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, expect

import postgres
import web
from kills.cluster import AWAY, Cluster
from kills.processes import Service
from page import site
from ports import free_port
from replicas import stage
from tcp_proxy import TcpProxy

pytestmark = [pytest.mark.usefixtures("postgresql"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with site.chromium() as launched:
        yield launched


@pytest.fixture
def front() -> Iterator[TcpProxy]:
    """The one address that browsers know."""
    with TcpProxy(0) as proxy:
        yield proxy


class Site:
    """Two replicas with the page, and what a browser sends them."""

    def __init__(self, folder: Path, database: postgres.Postgres, front: TcpProxy) -> None:
        self.ports = {name: free_port() for name in stage.TWO}
        own = {
            name: f'[operator]\nlisten = "127.0.0.1:{port}"\n' for name, port in self.ports.items()
        }
        url = database.create_database(folder.name[:40].lower())
        self.cluster = Cluster(folder, url, 1, stage.TWO, own_settings=own)
        self.front = front
        self.url = f"http://127.0.0.1:{front.port}"

    @property
    def replicas(self) -> tuple[Service, Service]:
        first, second = self.cluster.replicas.values()
        return first, second

    def turn(self, name: str) -> None:
        """Let browsers reach this replica."""
        self.front.turn(self.ports[name])

    def key(self, replica: Service) -> str:
        url = str(replica.ask("POST", "/v1/tokens/page", {})["url"])
        return url.partition("#")[2]

    def ask(
        self, name: str, method: str, path: str, cookie: str = "", **form: str
    ) -> tuple[int, str]:
        """Ask a replica as the front does; return the status and the cookie of its answer."""
        headers = {
            "Host": self.url.removeprefix("http://"),
            "Content-Type": "application/x-www-form-urlencoded",
            "Origin": self.url,
            "Cookie": cookie,
        }
        told = web.ask(self.ports[name], path, method, urlencode(form), headers=headers)
        return told.status, told.headers.get("set-cookie", "").partition(";")[0]

    def until_status(self, status: int, name: str, cookie: str) -> None:
        """Return when a replica answers a browser so."""

        def answers() -> bool:
            with contextlib.suppress(*AWAY):
                return self.ask(name, "GET", "/search?q=1", cookie)[0] == status
            return False

        stage.until(answers)


def of_page(replica: Service) -> list[str]:
    tokens = replica.ask("GET", "/v1/tokens")["tokens"]
    return [token["name"] for token in tokens if token["audience"] == "page"]


IN, OUT = 303, 401
"""How the search for a maintenance is answered, with a valid token and without one."""


def test_a_token_is_good_at_every_replica_outlives_the_one_that_made_it_and_ends_everywhere(
    tmp_path: Path, database: postgres.Postgres, front: TcpProxy, browser: Browser
) -> None:
    found = Site(tmp_path, database, front)
    with found.cluster:
        stage.prepare(found.cluster)
        first, second = found.replicas
        found.turn("r1")
        window = browser.new_context().new_page()
        window.set_default_timeout(site.MILLISECONDS)
        key = found.key(first)
        window.goto(f"{found.url}/login#{key}")
        window.wait_for_url(f"{found.url}/")
        expect(window.locator("#live")).to_have_attribute("data-state", "live")
        (cookie,) = (f"{each['name']}={each['value']}" for each in window.context.cookies())
        found.until_status(IN, "r2", cookie)
        assert found.ask("r2", "POST", "/login", token=key)[0] == OUT  # a link is good once

        _, other = found.ask("r2", "POST", "/login", token=found.key(second))
        found.until_status(IN, "r1", other)
        assert found.ask("r2", "POST", "/logout", other)[0] == IN
        for name in stage.TWO:
            found.until_status(OUT, name, other)

        first.kill()
        first.reap()
        found.turn("r2")
        expect(window.locator("#live")).to_have_attribute("data-state", "live")
        stage.request(second, stage.MACHINES[0])
        expect(window.locator("main")).to_contain_text("1.1")  # by the stream of the other one
        window.goto(f"{found.url}/orders/cancel?reference=1")
        cancel = window.get_by_role("button", name="Cancel maintenance 1")
        site.follow(cancel, f"{found.url}/maintenance/1")
        expect(window.locator("main > .head")).to_contain_text("cancelled")
        (token,) = of_page(second)
        second.ask("DELETE", f"/v1/tokens?{urlencode({'name': token})}")
        found.until_status(OUT, "r2", cookie)
        first.start(fresh=False)
        first.wait_until_ready()
        found.until_status(OUT, "r1", cookie)
        found.front.cut()
        window.wait_for_url(f"{found.url}/login")
        window.context.close()
