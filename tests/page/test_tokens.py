"""A browser's token: it opens the page alone, and no longer than the token that made it."""

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
from forewarn.server.operator.administration import PAGE_TOKEN_LASTS
from forewarn.store.queries import Reading
from forewarn.store.sql import Store
from forewarn.store.sqlite import InMemoryStore
from forewarn.vocabulary import AccessRole, ErrorCode, TokenAudience
from server.running import ME, NOON, Client, Flaky, Running, settings_in, stranger
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

    def key(self) -> str:
        return key_of(self.root)

    def cookie(self, client: Client | None = None) -> str:
        """Log in as a client, or as root; return what the browser sends from then on."""
        answer = self.post("/login", token=key_of(client or self.root))
        assert answer.status == 303
        return (answer.getheader("Set-Cookie") or "").partition(";")[0]

    def lasts(self, client: Client | None = None) -> int:
        """Log in as a client, or as root; return for how many seconds the browser keeps that."""
        answer = self.post("/login", token=key_of(client or self.root))
        found = re.search(r"Max-Age=(\d+)", answer.getheader("Set-Cookie") or "", re.IGNORECASE)
        assert found is not None
        return int(found[1])

    def account(self, name: str, role: str = "viewer", **more: str) -> Client:
        made = self.root.ask("POST", "/v1/tokens", {"name": name, "role": role, **more})
        return Client(self.url, made.json["token"])

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


def test_a_token_lasts_for_its_time_and_the_next_one_sweeps_it_away(door: Door) -> None:
    cookie = door.cookie()
    assert door.lets_in(cookie)
    door.clock.advance(PAGE_TOKEN_LASTS - timedelta(seconds=1))
    assert door.lets_in(cookie)
    door.clock.advance(timedelta(seconds=1))
    assert not door.lets_in(cookie)
    (old,) = door.tokens()
    door.cookie()
    (new,) = door.tokens()
    assert new != old


def test_an_account_has_so_many_tokens_and_the_oldest_gives_way(door: Door) -> None:
    first = door.cookie()
    for _ in range(accounts.MAX_PAGE_TOKENS):
        assert door.lets_in(first)
        door.clock.advance(timedelta(seconds=1))
        latest = door.cookie()
    assert not door.lets_in(first)
    assert door.lets_in(latest)
    assert len(door.tokens()) == accounts.MAX_PAGE_TOKENS


def test_a_cookie_opens_the_page_and_never_the_api(door: Door) -> None:
    cookie = door.cookie()
    assert door.lets_in(cookie)
    for path in ("/v1/events", "//v1/events", "/v1//events", "/metrics", "/metrics/", "//metrics"):
        assert not door.lets_in(cookie, path), path
    newline = Client(door.url).ask("GET", "/metrics%0A", headers={"Cookie": cookie})
    assert newline.status == 404, newline.body


def test_a_token_lets_in_its_audience_alone(door: Door) -> None:
    key = door.key()
    cookie = door.cookie()
    name, _, secret = cookie.partition("=")
    for shown in (key, secret):
        bearer = Client(door.url, shown)
        asked = (("GET", "/v1/fleet"), ("POST", "/v1/tokens/page"), ("GET", "/search?q=1"))
        for method, path in asked:
            assert bearer.ask(method, path, {} if method == "POST" else None).status == 401, path
    made = door.root.ask("POST", "/v1/tokens", {"name": "ann", "role": "viewer"})
    assert Client(door.url, made.json["token"]).ask("GET", "/v1/fleet").status == 200
    assert not door.lets_in(f"{name}={made.json['token']}")
    assert door.post("/login", token=made.json["token"]).status == 401
    assert door.lets_in(cookie)


def test_a_browsers_token_ends_with_the_time_of_the_token_that_made_it(door: Door) -> None:
    ann = door.account("ann", expires_at=(NOON + timedelta(hours=1)).isoformat())
    door.clock.advance(timedelta(minutes=59))
    assert door.lasts(ann) == 60  # in the browser too
    cookie = door.cookie(ann)
    assert door.lets_in(cookie)
    door.clock.advance(timedelta(minutes=1))
    assert not door.lets_in(cookie)


def test_a_browser_keeps_its_token_for_what_is_left_of_it(door: Door) -> None:
    key = door.key()
    assert door.lasts() == PAGE_TOKEN_LASTS.total_seconds()
    door.clock.advance(PAGE_TOKEN_LASTS - timedelta(minutes=1))
    answer = door.post("/login", token=key)
    assert "max-age=60;" in (answer.getheader("Set-Cookie") or "").lower()


def test_a_browsers_token_ends_with_the_token_that_made_it_whoever_has_its_name(door: Door) -> None:
    cookie = door.cookie(door.account("ann", "admin"))
    unused = key_of(Client(door.url, door.by_file()))
    revoked = door.root.ask("DELETE", "/v1/tokens?name=ann").json["tokens"]
    assert sorted({token["name"].partition("/")[0] for token in revoked}) == ["ann"]
    assert len(revoked) == 2
    door.account("ann", "viewer")
    assert not door.lets_in(cookie)
    assert door.post("/login", token=unused).status == 303


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
    ann = door.account("ann", expires_at=(NOON + timedelta(hours=1)).isoformat())
    with streaming(door, door.cookie(ann)) as stream:
        door.clock.advance(timedelta(hours=1))
        door.root.ask("POST", "/v1/holds", {"kind": "everything", "name": ""})
        assert stream.read().count(b"event:") <= 1


def test_what_a_browser_does_is_its_accounts(door: Door) -> None:
    cookie = door.cookie()
    answer = door.post("/logout", cookie)
    assert (answer.status, answer.getheader("Location")) == (303, "/login")
    assert door.tokens() == []
    out, into = door.root.get("/v1/audit?logins=true")["records"][:2]
    assert [one["action"] for one in (into, out)] == ["POST /login", "POST /logout"]
    assert {one["by"] for one in (into, out)} == {ME}


def test_to_log_out_with_a_programs_token_leaves_that_valid(door: Door) -> None:
    ann = door.account("ann")
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Origin": door.url}
    assert ann.ask("POST", "/logout", b"", headers).status == 303
    assert ann.ask("GET", "/v1/fleet").status == 200


def test_an_admin_revokes_anybodys_token_by_its_name_or_its_account(door: Door) -> None:
    for name in (lambda: door.tokens()[0], lambda: ME):
        cookie = door.cookie()
        assert door.root.ask("DELETE", f"/v1/tokens?name={name()}").status == 200
        assert not door.lets_in(cookie)
    assert door.root.ask("DELETE", f"/v1/tokens?name={ME}").status == 404


def test_a_wrong_token_is_a_failed_log_in(door: Door) -> None:
    assert door.post("/login", token="guessed").status == 401
    told = door.root.ask("GET", "/metrics").body.decode()
    assert 'forewarn_operator_failed_logins_total{reason="unknown"} 1.0' in told


def test_a_guess_costs_the_store_nothing(tmp_path: Path) -> None:
    store = Flaky(InMemoryStore())
    with Running(settings_in(tmp_path, listen="127.0.0.1:0"), store) as running:
        store.away = True
        assert Door(running, ManualClock(NOON)).post("/login", token="guessed").status == 401


def test_a_browser_that_is_not_logged_in_has_not_failed(door: Door) -> None:
    for _ in range(20):
        answer = stranger(door.url).ask("GET", "/", headers={"Accept": "text/html"})
        assert (answer.status, answer.headers["Location"]) == (303, "/login")
    told = door.root.ask("GET", "/metrics").body.decode()
    assert 'forewarn_operator_failed_logins_total{reason="missing"} 0.0' in told


def test_a_form_that_is_sent_after_the_tokens_end_leads_to_the_log_in(door: Door) -> None:
    headers = {"Accept": "text/html", "Origin": door.url, "Cookie": "forewarn=ended"}
    headers["Content-Type"] = "application/x-www-form-urlencoded"
    answer = stranger(door.url).ask("POST", "/page/maintenance", b"action=plan", headers)
    assert (answer.status, answer.headers["Location"]) == (303, "/login")


def test_a_script_of_the_page_is_told_to_lead_the_whole_page_to_the_log_in(door: Door) -> None:
    answer = stranger(door.url).ask("GET", "/", headers={"HX-Request": "true"})
    assert (answer.status, answer.headers["HX-Redirect"]) == (401, "/login")


def test_a_link_is_good_once_and_no_longer_than_its_token(door: Door) -> None:
    used, late = door.key(), door.key()
    assert door.post("/login", token=used).status == 303
    assert door.post("/login", token=used).status == 401
    door.clock.advance(PAGE_TOKEN_LASTS)
    assert door.post("/login", token=late).status == 401


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


def test_where_the_services_clock_runs_faster_a_token_lasts_as_long_for_its_browser(
    tmp_path: Path,
) -> None:
    wanted = settings_in(tmp_path, listen="127.0.0.1:0")
    wanted = replace(wanted, clock=replace(wanted.clock, scale=60.0))
    with Running(wanted, InMemoryStore()) as running:
        made = running.client().ask("POST", "/v1/tokens/page", {}).json["account"]
    ends, began = (datetime.fromisoformat(made[name]) for name in ("expires_at", "created_at"))
    assert ends - began == 60 * PAGE_TOKEN_LASTS


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


def test_a_page_says_what_it_had_when_it_was_asked_for_not_when_it_was_ready(
    tmp_path: Path,
) -> None:
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
