"""A browser's token beside its stories: files, streams, threads, TLS, and a store that is slow."""

import re
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest
from msgspec.structs import replace

import patience
from forewarn.clock import ManualClock
from forewarn.control import accounts
from forewarn.maintenance.accounts import Token
from forewarn.maintenance.model import Refused
from forewarn.server import settings
from forewarn.server.operator.administration import PAGE_TOKEN_LASTS
from forewarn.store.queries import Reading
from forewarn.store.sql import Store
from forewarn.store.sqlite import InMemoryStore
from forewarn.vocabulary import AccessRole, ErrorCode, TokenAudience
from patience import eventually
from server.running import NOON, Client, Flaky, Running, settings_in
from store.shared import SharedStore
from store.wrapped import Wrapped


class Door:
    """A service at noon, asked as a browser asks it."""

    def __init__(self, running: Running, clock: ManualClock) -> None:
        self.running = running
        self.root = running.client()
        self.clock = clock
        self.url = running.opened.operators[1]

    def post(self, path: str, cookie: str = "", **form: str) -> HTTPResponse:
        connection = HTTPConnection(str(urlsplit(self.url).netloc), timeout=patience.SECONDS)
        headers = {"Content-Type": "application/x-www-form-urlencoded", "Origin": self.url}
        connection.request("POST", path, urlencode(form), {**headers, "Cookie": cookie})
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return answer

    def cookie(self, client: Client | None = None) -> str:
        """Log in as a client, or as root; return what the browser sends from then on."""
        answer = self.post("/login", token=key_of(client or self.root))
        assert answer.status == 303
        return (answer.getheader("Set-Cookie") or "").partition(";")[0]

    def by_file(self) -> str:
        file = Path(self.running.settings.operator.token_file)
        return file.read_text(encoding="ascii").strip()

    def lets_in(self, cookie: str, path: str = "/search?q=1") -> bool:
        answer = Client(self.url).ask("GET", path, headers={"Cookie": cookie})
        return answer.status not in {401, 403}

    def tokens(self) -> list[str]:
        tokens = self.root.get("/v1/tokens")["tokens"]
        return [token["name"] for token in tokens if token["audience"] == "page"]


def key_of(client: Client) -> str:
    """Return what is in the fragment of a new link."""
    made = client.ask("POST", "/v1/tokens/page", {})
    assert made.status == 201, made.body
    return str(made.json["url"].partition("#")[2])


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    clock = ManualClock(NOON)
    wanted = settings_in(tmp_path, listen="127.0.0.1:0")
    with Running(wanted, InMemoryStore(), clock) as running:
        yield Door(running, clock)


def test_another_token_in_the_file_ends_what_the_one_before_has_made(tmp_path: Path) -> None:
    wanted = settings_in(tmp_path, listen="127.0.0.1:0")
    with Running(wanted, InMemoryStore(), ManualClock(NOON)) as running:
        file = Path(wanted.operator.token_file)
        door = Door(running, ManualClock(NOON))
        for letter in "xy":
            cookie = door.cookie(Client(door.url, door.by_file()))
            running.reload()
            assert door.lets_in(cookie)
            file.write_text("another-token-of-the-file-" + letter * 30, encoding="ascii")
            running.reload()
            assert not door.lets_in(cookie)
        assert len(door.tokens()) == 2
        assert door.root.ask("DELETE", "/v1/tokens?name=token-file").status == 200
        assert door.tokens() == []


@contextmanager
def streaming(door: Door, cookie: str) -> Iterator[HTTPResponse]:
    connection = HTTPConnection(str(urlsplit(door.url).netloc), timeout=patience.SECONDS)
    connection.request("GET", "/page/stream", headers={"Cookie": cookie})
    stream = connection.getresponse()
    assert stream.readline().startswith(b":")
    yield stream
    connection.close()


def test_the_stream_of_an_open_page_ends_once_its_token_is_revoked(door: Door) -> None:
    with streaming(door, door.cookie()) as stream:
        (name,) = door.tokens()
        assert door.root.ask("DELETE", f"/v1/tokens?name={name}").status == 200
        door.root.ask("POST", "/v1/holds", {"kind": "everything", "name": ""})
        stream.read()  # to its end


def test_an_open_page_ends_with_the_time_of_the_token_that_made_its_own(door: Door) -> None:
    until = (NOON + timedelta(hours=1)).isoformat()
    asked = {"name": "ann", "role": "viewer", "expires_at": until}
    made = door.root.ask("POST", "/v1/tokens", asked)
    with streaming(door, door.cookie(Client(door.url, made.json["token"]))) as stream:
        door.clock.advance(timedelta(hours=1))
        door.root.ask("POST", "/v1/holds", {"kind": "everything", "name": ""})
        assert stream.read().count(b"event:") <= 1


def test_a_guess_costs_the_store_nothing(tmp_path: Path) -> None:
    store = Flaky(InMemoryStore())
    with Running(settings_in(tmp_path, listen="127.0.0.1:0"), store) as running:
        store.away = True
        assert Door(running, ManualClock(NOON)).post("/login", token="guessed").status == 401


def test_of_two_that_have_read_a_link_at_once_one_is_logged_in(door: Door) -> None:
    token = Token(
        name="ann/1",
        role=AccessRole.VIEWER,
        digest="of the link",
        audience=TokenAudience.PAGE,
        created_by="ann",
        created_at=NOON,
        expires_at=NOON + PAGE_TOKEN_LASTS,
    )
    plane = door.running.plane
    plane.order(accounts.create_page_token, token).result()
    renewed = plane.order(accounts.renew_secret, token, "one").result()
    assert (renewed.digest, renewed.expires_at) == ("one", token.expires_at)
    with pytest.raises(Refused) as refused:
        plane.order(accounts.renew_secret, token, "other").result()
    assert refused.value.code is ErrorCode.UNAUTHORIZED


def test_where_the_clock_runs_faster_a_token_lasts_as_long_for_its_browser(tmp_path: Path) -> None:
    wanted = settings_in(tmp_path, listen="127.0.0.1:0")
    wanted = replace(wanted, clock=replace(wanted.clock, scale=60.0))
    with Running(wanted, InMemoryStore()) as running:
        made = running.client().ask("POST", "/v1/tokens/page", {}).json["account"]
    ends, began = (datetime.fromisoformat(made[name]) for name in ("expires_at", "created_at"))
    assert ends - began == 60 * PAGE_TOKEN_LASTS


def test_a_token_is_good_at_every_replica_outlives_the_one_that_made_it_and_ends_everywhere(
    tmp_path: Path,
) -> None:
    store = SharedStore()

    def replica(name: str) -> Running:
        (tmp_path / name).mkdir()
        wanted = settings_in(tmp_path / name, listen="127.0.0.1:0")
        return Running(replace(wanted, replica=settings.ReplicaSettings(name=name)), store)

    with replica("two") as left:
        second = Door(left, ManualClock(NOON))
        with replica("one") as lost:
            first = Door(lost, ManualClock(NOON))
            key = key_of(first.root)
            answer = first.post("/login", token=key)
            cookie = as_of(second, (answer.getheader("Set-Cookie") or "").partition(";")[0])
            eventually(lambda: second.lets_in(cookie), True)
            assert second.post("/login", token=key).status == 401  # a link is good once
            other = second.cookie()
            eventually(lambda: first.lets_in(as_of(first, other)), True)
            assert second.post("/logout", other).status == 303
            eventually(lambda: first.lets_in(as_of(first, other)), False)
        with streaming(second, cookie) as stream:
            (name,) = second.tokens()
            assert second.root.ask("DELETE", f"/v1/tokens?name={name}").status == 200
            second.root.ask("POST", "/v1/holds", {"kind": "everything", "name": ""})
            stream.read()  # to its end
        assert not second.lets_in(cookie)


def as_of(door: Door, cookie: str) -> str:
    """Return another replica's cookie as of this one's port: behind one address both have one."""
    return f"forewarn-{urlsplit(door.url).port}={cookie.partition('=')[2]}"


def test_over_tls_the_cookie_never_goes_over_plain_http(tmp_path: Path) -> None:
    certificates = Path(__file__).parents[1] / "operator" / "certificates"
    files = {
        "tls_certificate": str(certificates / "first.pem"),
        "tls_key": str(certificates / "first.key"),
    }
    wanted = settings_in(tmp_path, listen="127.0.0.1:0", **files)
    with Running(wanted, InMemoryStore()) as running:
        url = running.client().ask("POST", "/v1/tokens/page", {}).json["url"]
        assert url.startswith("https://127.0.0.1:")
        host, key = urlsplit(url).netloc, url.partition("#")[2]
        trusting = ssl.create_default_context(cafile=certificates / "first.pem")
        connection = HTTPSConnection(host, timeout=patience.SECONDS, context=trusting)
        headers = {
            "Content-Type": "application/x-www-form-urlencoded",
            "Origin": f"https://{host}",
        }
        connection.request("POST", "/login", urlencode({"token": key}), headers)
        answer = connection.getresponse()
        connection.close()
    assert answer.status == 303
    assert "secure" in (answer.getheader("Set-Cookie") or "").lower()


def test_a_page_says_what_it_had_when_it_was_asked_for_not_when_ready(tmp_path: Path) -> None:
    store = Slow(InMemoryStore())
    wanted = settings_in(tmp_path, listen="127.0.0.1:0")
    with Running(wanted, store, ManualClock(NOON)) as running:
        root = running.client()
        root.ask("GET", "/")  # what is read once is read
        with ThreadPoolExecutor(1) as other:
            store.begin()
            asked = other.submit(root.ask, "GET", "/?range=12h")
            assert store.reached.wait(patience.SECONDS)
            assert root.ask("POST", "/v1/tokens", {"name": "ann", "role": "viewer"}).status == 201
            store.go_on.set()
            late = asked.result().body.decode()
        now = root.ask("GET", "/").body.decode()
    state = r'data-state="([^"]+)"'
    assert re.findall(state, late) != re.findall(state, now)


class Slow(Wrapped):
    """A store whose next reader waits until he is let on."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.reached, self.go_on = threading.Event(), threading.Event()
        self._next = threading.Lock()

    def begin(self) -> None:
        self._next.acquire()

    @contextmanager
    def read(self) -> Iterator[Reading]:
        if self._next.locked() and not self.reached.is_set():
            self.reached.set()
            assert self.go_on.wait(patience.SECONDS)
        with super().read() as reading:
            yield reading
