"""Sessions and links are tokens of the database, and none lasts for ever."""

import re
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest

import patience
from forewarn.clock import ManualClock
from forewarn.control import accounts
from forewarn.maintenance.model import Refused
from forewarn.server.operator import auth
from forewarn.store import memory
from forewarn.store.port import Reading, Store
from forewarn.vocabulary import AccessRole, ErrorCode
from server.running import ME, NOON, Client, Running, settings_in, stranger
from store.wrapped import Wrapped


class Door:
    """A service at noon, asked as a browser asks it."""

    def __init__(self, running: Running, clock: ManualClock) -> None:
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
        made = self.root.ask("POST", "/v1/logins", {})
        assert made.status == 201, made.body
        return str(made.json["url"].partition("key=")[2])

    def cookie(self) -> str:
        """Log in, and return what the browser sends from then on."""
        answer = self.post("/login", key=self.key())
        assert answer.status == 303
        return (answer.getheader("Set-Cookie") or "").partition(";")[0]

    def lets_in(self, cookie: str, path: str = "/search?q=1") -> bool:
        answer = Client(self.url).ask("GET", path, headers={"Cookie": cookie})
        return answer.status not in {401, 403}

    def sessions(self) -> list[str]:
        tokens = self.root.get("/v1/tokens")["tokens"]
        return [token["name"] for token in tokens if token["session"]]


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    clock = ManualClock(NOON)
    wanted = settings_in(tmp_path, listen="127.0.0.1:0")
    with Running(wanted, memory.MemoryStore(), clock) as running:
        yield Door(running, clock)


def test_a_session_lasts_for_its_time_and_the_next_log_in_sweeps_it_away(door: Door) -> None:
    cookie = door.cookie()
    assert door.lets_in(cookie)
    door.clock.advance(auth.SESSION_LASTS - timedelta(seconds=1))
    assert door.lets_in(cookie)
    door.clock.advance(timedelta(seconds=1))
    assert not door.lets_in(cookie)
    (old,) = door.sessions()
    door.cookie()
    (new,) = door.sessions()
    assert new != old


def test_an_account_is_logged_in_with_so_many_browsers_and_the_oldest_gives_way(door: Door) -> None:
    first = door.cookie()
    for _ in range(accounts.MAX_SESSIONS):
        assert door.lets_in(first)
        door.clock.advance(timedelta(seconds=1))
        latest = door.cookie()
    assert not door.lets_in(first)
    assert door.lets_in(latest)
    assert len(door.sessions()) == accounts.MAX_SESSIONS


def test_a_cookie_opens_the_page_and_never_the_api(door: Door) -> None:
    cookie = door.cookie()
    assert door.lets_in(cookie)
    for path in ("/v1/events", "//v1/events", "/v1//events", "/metrics", "/metrics/", "//metrics"):
        assert not door.lets_in(cookie, path), path
    assert not door.lets_in(cookie, "/metrics")


def test_a_session_is_no_bearer_token_and_a_token_is_no_session(door: Door) -> None:
    cookie = door.cookie()
    name, _, session = cookie.partition("=")
    bearer = Client(door.url, session)
    for method, path in (("GET", "/v1/fleet"), ("POST", "/v1/logins"), ("GET", "/search?q=1")):
        assert bearer.ask(method, path, {} if method == "POST" else None).status == 401, path
    made = door.root.ask("POST", "/v1/tokens", {"name": "ann", "role": "viewer"})
    assert Client(door.url, made.json["token"]).ask("GET", "/v1/fleet").status == 200
    assert not door.lets_in(f"{name}={made.json['token']}")
    assert door.lets_in(cookie)


def test_a_session_ends_with_the_time_of_its_accounts_token(door: Door) -> None:
    ends = (NOON + timedelta(hours=1)).isoformat()
    wanted = {"name": "ann", "role": "viewer", "expires_at": ends}
    ann = Client(door.url, door.root.ask("POST", "/v1/tokens", wanted).json["token"])
    door.clock.advance(timedelta(minutes=59))
    key = ann.ask("POST", "/v1/logins", {}).json["url"].partition("key=")[2]
    answer = door.post("/login", key=key)
    cookie = (answer.getheader("Set-Cookie") or "").partition(";")[0]
    assert door.lets_in(cookie)
    door.clock.advance(timedelta(minutes=1))
    assert not door.lets_in(cookie)


def test_another_token_in_the_file_ends_the_sessions_of_the_one_before(tmp_path: Path) -> None:
    wanted = settings_in(tmp_path, listen="127.0.0.1:0")
    with Running(wanted, memory.MemoryStore(), ManualClock(NOON)) as running:
        file = Path(wanted.operator.token_file)
        door = Door(running, ManualClock(NOON))
        cookies = []
        for letter in "xy":
            admin = Client(door.url, file.read_text(encoding="ascii").strip())
            key = admin.ask("POST", "/v1/logins", {}).json["url"].partition("key=")[2]
            answer = door.post("/login", key=key)
            cookies.append((answer.getheader("Set-Cookie") or "").partition(";")[0])
            assert door.lets_in(cookies[-1])
            file.write_text("another-token-of-the-file-" + letter * 30, encoding="ascii")
            running.reload()
            assert not door.lets_in(cookies[-1])
        assert len(door.sessions()) == 2
        assert door.root.ask("DELETE", "/v1/tokens?name=token-file").status == 200
        assert door.sessions() == []


def test_an_open_page_is_told_nothing_more_once_its_session_has_ended(door: Door) -> None:
    cookie = door.cookie()
    connection = HTTPConnection(str(urlsplit(door.url).netloc), timeout=patience.SECONDS)
    connection.request("GET", "/page/stream", headers={"Cookie": cookie})
    stream = connection.getresponse()
    assert stream.readline().startswith(b":")
    (name,) = door.sessions()
    assert door.root.ask("DELETE", f"/v1/tokens?name={name}").status == 200
    for _ in range(20):  # the pages are told of changes by the real clock
        door.root.ask("POST", "/v1/holds", {"kind": "everything", "name": ""})
    door.clock.advance(timedelta(seconds=20))
    told = stream.read()
    assert told.count(b"event:") <= 1  # of what had changed before
    connection.close()


def test_what_a_session_does_is_its_accounts(door: Door) -> None:
    cookie = door.cookie()
    answer = door.post("/logout", cookie)
    assert (answer.status, answer.getheader("Location")) == (303, "/login")
    out, into = door.root.get("/v1/audit")["records"][:2]
    assert [one["action"] for one in (into, out)] == ["POST /login", "POST /logout"]
    assert {one["by"] for one in (into, out)} == {ME}


def test_an_admin_ends_anybodys_session(door: Door) -> None:
    cookie = door.cookie()
    (name,) = door.sessions()
    assert door.root.ask("DELETE", f"/v1/tokens?name={name}").status == 200
    assert not door.lets_in(cookie)


def test_a_wrong_key_is_a_failed_log_in(door: Door) -> None:
    assert door.post("/login", key="guessed").status == 401
    told = door.root.ask("GET", "/metrics").body.decode()
    assert 'forewarn_operator_failed_logins_total{reason="unknown"} 1.0' in told


def test_a_browser_without_a_session_has_not_failed(door: Door) -> None:
    for _ in range(20):
        answer = stranger(door.url).ask("GET", "/", headers={"Accept": "text/html"})
        assert (answer.status, answer.headers["Location"]) == (303, "/login")
    told = door.root.ask("GET", "/metrics").body.decode()
    assert 'forewarn_operator_failed_logins_total{reason="missing"} 0.0' in told


def test_a_form_that_is_sent_after_the_session_leads_to_the_log_in(door: Door) -> None:
    headers = {"Accept": "text/html", "Origin": door.url, "Cookie": "forewarn=ended"}
    headers["Content-Type"] = "application/x-www-form-urlencoded"
    answer = stranger(door.url).ask("POST", "/page/maintenance", b"action=plan", headers)
    assert (answer.status, answer.headers["Location"]) == (303, "/login")


def test_a_script_of_the_page_is_told_to_lead_the_whole_page_to_the_log_in(door: Door) -> None:
    answer = stranger(door.url).ask("GET", "/", headers={"HX-Request": "true"})
    assert (answer.status, answer.headers["HX-Redirect"]) == (401, "/login")


def test_a_link_is_good_for_its_time_and_once(door: Door) -> None:
    used, late, kept = door.key(), door.key(), door.key()
    assert door.post("/login", key=used).status == 303
    assert door.post("/login", key=used).status == 401
    door.clock.advance(auth.LINK_LASTS - timedelta(seconds=1))
    assert door.post("/login", key=kept).status == 303
    door.clock.advance(timedelta(seconds=1))
    assert door.post("/login", key=late).status == 401


def test_of_two_that_have_read_a_link_at_once_one_is_logged_in(tmp_path: Path) -> None:
    link = auth.new_link("ann", AccessRole.VIEWER, "key", NOON, 1.0)
    one, other = (auth.session_of(link, key, NOON, 1.0) for key in ("one", "other"))
    wanted = settings_in(tmp_path, listen="127.0.0.1:0")
    with Running(wanted, memory.MemoryStore(), ManualClock(NOON)) as running:
        plane = running.plane
        plane.order(accounts.make_link, link).result()
        assert plane.order(accounts.open_session, one, link.name).result() == one
        with pytest.raises(Refused) as refused:
            plane.order(accounts.open_session, other, link.name).result()
    assert refused.value.code is ErrorCode.UNAUTHORIZED


def test_a_link_is_no_session_and_lets_nobody_in_by_itself(door: Door) -> None:
    key = door.key()
    assert door.root.get("/v1/tokens")["tokens"] == []
    port = urlsplit(door.url).port
    assert not door.lets_in(f"forewarn-{port}={key}")
    assert Client(door.url, key).ask("GET", "/v1/events").status == 401
    assert door.post("/login", key=key).status == 303


def test_a_link_ends_with_the_token_that_it_was_asked_for_with(door: Door) -> None:
    made = door.root.ask("POST", "/v1/tokens", {"name": "ann", "role": "viewer"})
    ann = Client(door.url, made.json["token"])
    key = ann.ask("POST", "/v1/logins", {}).json["url"].partition("key=")[2]
    revoked = door.root.ask("DELETE", "/v1/tokens?name=ann")
    assert [token["name"] for token in revoked.json["tokens"]] == ["ann"]
    assert door.post("/login", key=key).status == 401


def test_links_that_nobody_uses_give_way_the_oldest_first(door: Door) -> None:
    first = door.key()
    door.clock.advance(timedelta(seconds=1))
    second = door.key()
    door.clock.advance(timedelta(seconds=1))
    for _ in range(accounts.MAX_LINKS - 1):
        door.key()
    assert door.post("/login", key=first).status == 401
    assert door.post("/login", key=second).status == 303


def test_where_the_services_clock_runs_faster_a_session_lasts_as_long_for_its_browser() -> None:
    link = auth.new_link("ann", AccessRole.VIEWER, "key", NOON, scale=60.0)
    assert link.expires_at == NOON + 60 * auth.LINK_LASTS
    session = auth.session_of(link, "another", NOON, scale=60.0)
    assert session.expires_at == NOON + 60 * auth.SESSION_LASTS


def test_over_tls_the_cookie_never_goes_over_plain_http(tmp_path: Path) -> None:
    certificates = Path(__file__).parents[1] / "operator" / "certificates"
    files = {
        "tls_certificate": str(certificates / "first.pem"),
        "tls_key": str(certificates / "first.key"),
    }
    wanted = settings_in(tmp_path, listen="127.0.0.1:0", **files)
    with Running(wanted, memory.MemoryStore()) as running:
        url = running.client().ask("POST", "/v1/logins", {}).json["url"]
        assert url.startswith("https://127.0.0.1:")
        host, key = urlsplit(url).netloc, url.partition("key=")[2]
        trusting = ssl.create_default_context(cafile=certificates / "first.pem")
        connection = HTTPSConnection(host, timeout=patience.SECONDS, context=trusting)
        headers = {
            "Content-Type": "application/x-www-form-urlencoded",
            "Origin": f"https://{host}",
        }
        connection.request("POST", "/login", urlencode({"key": key}), headers)
        answer = connection.getresponse()
        connection.close()
    assert answer.status == 303
    assert "secure" in (answer.getheader("Set-Cookie") or "").lower()


def test_a_page_says_what_it_had_when_it_was_asked_for_not_when_it_was_ready(
    tmp_path: Path,
) -> None:
    store = Slow(memory.MemoryStore())
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


def test_an_open_stream_ends_with_the_service_and_is_not_torn(tmp_path: Path) -> None:
    wanted = settings_in(tmp_path, listen="127.0.0.1:0")
    with Running(wanted, memory.MemoryStore()) as running:
        token = Path(running.settings.operator.token_file).read_text(encoding="ascii").strip()
        host = str(urlsplit(running.opened.operators[1]).netloc)
        connection = HTTPConnection(host, timeout=patience.SECONDS)
        connection.request("GET", "/page/stream", headers={"Authorization": f"Bearer {token}"})
        stream = connection.getresponse()
        assert stream.readline().startswith(b":")
    stream.read()  # IncompleteRead where it was torn
    connection.close()


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
