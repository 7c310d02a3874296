"""The page in stories of requests, one a line: its forms, its orders, and a browser's token."""

import csv
import html
import io
import re
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import yaml

import stories
from forewarn.clock import ManualClock
from forewarn.maintenance import model
from forewarn.server.operator import table
from forewarn.server.page import machines
from forewarn.store.sqlite import InMemoryStore
from page.site import FORM, links, mistaken, references, typed_in
from server.exchange import Exchanges, Text
from server.running import NOON, Answer, Cli, Client, Running, settings_in, stranger

FORM_BEGUN = {"event_type": "Reboot", "action": "plan"}
FORMS = re.compile(r"(?:as (\S+) )?FORM (\S+) (\{.*\})", re.DOTALL)


HOSTS = [f"räck{n:03}{'ä' * 240}" for n in range(60)]
PLACES = [f"r{n:03}" for n in range(machines.MAX_PLACES)]


def on(hosts: list[str]) -> dict[str, Any]:
    """Return a fleet with a machine on each host."""
    return {"machine": [{"name": f"m{n}", "host": host} for n, host in enumerate(hosts)]}


class Browser(Client):
    """A browser that has a cookie, or a script of the page's without one."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        super().__init__(url)
        self._headers = headers

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Answer:
        return super().ask(method, path, body, self._headers | (headers or {}))


class Pages(Exchanges):
    """A story so far; clients whose names begin with `@` are browsers."""

    kept_seconds = 0

    def __init__(
        self, service: Running, clock: ManualClock | None = None, cli: Cli | None = None
    ) -> None:
        super().__init__(service, clock, cli)
        self.open: dict[str, tuple[HTTPConnection, HTTPResponse]] = {}

    @property
    def url(self) -> str:
        return self.service.opened.operators[1]

    def carry_out(self, row: str) -> None:
        said, _, expected = row.partition(" -> ")
        if (sent := FORMS.fullmatch(said)) is not None:
            who, path, told = sent.groups()
            answer = self.send(self.client(who or "root"), path, self.filled(yaml.load(told, Text)))
            self.compare_answer(answer, expected)
        elif row.startswith("at ") and len(row.split(" ", 2)) == 3:
            _, moment, rest = row.split(" ", 2)
            super().carry_out(f"at {moment}")
            self.carry_out(rest)
        else:
            super().carry_out(row)

    def client(self, who: str) -> Client:
        if who == "stranger":
            return Browser(self.url, {"Accept": "text/html"})
        if who == "script":
            return Browser(self.url, {"HX-Request": "true"})
        return super().client(who)

    def send(self, client: Client, path: str, fields: dict[str, Any]) -> Answer:
        """Send a form as a browser does."""
        body = urlencode(fields, doseq=True).encode()
        origin = {} if client is self.root else {"Origin": self.url}
        return client.ask("POST", path, body, FORM | origin)

    def compare(self, document: dict[str, Any], facts: str | None) -> None:
        """Compare facts; of a page also those of its main part."""
        text = document["text"]
        main = text.partition("<main ")[2]
        named = r'<tr[^>]*>\s*<td class="name"><a [^>]*>([^<]*)</a></td>'
        table = csv.DictReader(io.StringIO(text, newline=""))
        rows = [row["operation"] for row in table] if text.startswith("operation,") else []
        known = {
            "key": next(iter(re.findall(r'name="key" value="([^"]+)"', text)), None),
            "shown": next(
                map(html.unescape, re.findall(r'name="shown" value="([^"]+)"', text)), None
            ),
            "ticked": re.findall(r'name="hosts" value="([^"]*)" checked', text),
            "mistaken": mistaken(text) if 'aria-invalid="true"' in text else None,
            "references": references(text),
            "rows": rows,
            "main": main,
            "links": links(main),
            "machines": re.findall(named, text),
        }
        super().compare(document | known, facts)

    def link(self, name: str, who: str = "root") -> None:
        """Bind what is in the fragment of a new link, of root's or of another account."""
        made = self.client(who).ask("POST", "/v1/tokens/page", {})
        assert made.status == 201, made.body
        self.bound[name] = str(made.json["url"].partition("#")[2])

    def log_in(self, name: str, who: str = "root") -> None:
        """Have a browser log in; its secret is bound to its name."""
        self.link("latest", who)
        answer = self.send(stranger(self.url), "/login", {"token": self.bound["latest"]})
        assert answer.status == 303, answer.body
        said = str(answer.headers["Set-Cookie"])
        cookie, _, rest = said.partition(";")
        lasts = re.search(r"max-age=(\d+)", rest, re.IGNORECASE)
        assert lasts is not None
        self.kept_seconds = int(lasts[1])
        self.cookie_name, _, self.bound[name] = cookie.partition("=")
        self.cookie(name)

    def log_ins(self, times: str) -> None:
        for number in range(int(times)):
            self.log_in(f"other-{number}")

    def cookie(self, name: str) -> None:
        """Have a browser with what is bound to its name for its cookie."""
        kept = f"{getattr(self, 'cookie_name', 'forewarn')}={self.bound.get(name, name)}"
        headers = {"Cookie": kept}
        if name == "ended":
            headers["Accept"] = "text/html"
        self.clients[f"@{name}"] = Browser(self.url, headers)

    def kept(self, seconds: str) -> None:
        """Compare for how long the browser keeps its last cookie."""
        assert self.kept_seconds == int(seconds)

    def streams(self, name: str) -> None:
        """Follow the stream of a browser's open page, until it `ends`."""
        browser = self.client(f"@{name}")
        assert isinstance(browser, Browser)
        connection = browser._connection()
        connection.request("GET", "/page/stream", headers=browser._headers)
        self.open[name] = connection, connection.getresponse()
        assert self.open[name][1].readline().startswith(b":")

    def ends(self, name: str) -> None:
        """Read a stream to its end, before which it tells of a few changes at most."""
        connection, stream = self.open.pop(name)
        with closing(connection):
            assert sum(line.startswith(b"event:") for line in stream) <= 3

    def token_file(self, letter: str) -> None:
        """Have another token in the file, which the service reads again."""
        self.clients.pop("token-file", None)
        file = Path(self.service.settings.operator.token_file)
        file.write_text("another-token-of-the-file-" + letter * 30, encoding="ascii")
        self.service.reload()

    def shown(self, name: str, path: str) -> None:
        """Bind what a form says that it would do."""
        page = self.root.ask("GET", path).body.decode()
        (found,) = re.findall(r'name="shown" value="([^"]*)"', page)
        self.bound[name] = html.unescape(found)

    def reboots(self, times: str) -> None:
        """Ask for maintenance of so many machines, one by one."""
        for number in range(int(times)):
            body = {"event_type": "Reboot", "machines": [f"m{number}"]}
            assert self.root.ask("POST", "/v1/maintenances", body).status == 201

    def mistake(self, field: str, *texts: str, **typed: str) -> None:
        """Plan with texts that a field does not take: told beside it, and what was typed stays."""
        for text in texts:
            told = typed | {field: text}
            answer = self.send(self.root, "/page/maintenance", FORM_BEGUN | told)
            assert 400 <= answer.status < 500, answer.body
            page = answer.body.decode()
            assert mistaken(page) == field
            assert "at policy." not in page
            kept = {name: set(typed_in(page, name).split()) for name in told}
            assert kept == {name: set(each.split()) for name, each in told.items()}

    def too_long(self, path: str) -> None:
        """Send a form that no browser sends."""
        assert self.send(self.root, path, {"action": "x" * table.MAX_BODY}).status == 413


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Pages]:
    """A story of a service with a fleet of every kind, at noon."""
    clock = ManualClock(NOON)
    with Running(settings_in(tmp_path, listen="127.0.0.1:0"), InMemoryStore(), clock) as running:
        story = Pages(running, clock, no_command)
        story.bound |= {"hosts": HOSTS, "on_hosts": on(HOSTS), "longest": "h" * model.MAX_TEXT}
        story.bound |= {"places": PLACES, "on_places": on(PLACES)}
        assert story.root.ask("PUT", "/v1/fleet", story.bound["fleet"]).status == 200
        yield story


def no_command(*argv: str) -> tuple[int, str, str]:
    raise NotImplementedError(argv)


@pytest.mark.parametrize("rows", stories.stories_beside(__file__, "stories.txt"))
def test_the_story_holds(told: Pages, rows: stories.Rows) -> None:
    assert told.play("stories.txt", rows)
