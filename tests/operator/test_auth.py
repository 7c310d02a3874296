"""Who may ask: the token, the Host, the Origin, the content type."""

import asyncio
import contextlib
import itertools
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from forewarn.server.operator import auth
from forewarn.store.sqlite import InMemoryStore
from server.running import Client, Running, UnixConnection, settings_in, stranger


@pytest.fixture(scope="module")
def on_tcp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    wanted = settings_in(
        tmp_path_factory.mktemp("service"),
        listen="127.0.0.1:0",
        hosts=["ops.example", "https://proxy.example"],
    )
    with Running(wanted, InMemoryStore()) as running:
        yield running


@pytest.fixture
def url(on_tcp: Running) -> str:
    return on_tcp.opened.operators[1]


@pytest.fixture
def token(on_tcp: Running) -> str:
    return Path(on_tcp.settings.operator.token_file).read_text(encoding="ascii").strip()


def test_one_request_begins_in_each_round_of_the_loop_by_turns_of_accounts() -> None:
    async def play() -> list[list[str]]:
        turns = auth.Turns()
        rounds: list[list[str]] = [[]]

        async def ask(account: str) -> None:
            await turns.take(account)
            rounds[-1].append(account)

        asked = [asyncio.create_task(ask(account)) for account in ["ann"] * 6 + ["bob"]]
        await asyncio.sleep(0)
        asked[1].cancel()  # its client has gone
        while not all(each.done() for each in asked):
            rounds.append([])
            await asyncio.sleep(0)
        return rounds

    rounds = asyncio.run(play())
    assert max(map(len, rounds)) == 1
    begun = list(itertools.chain(*rounds))
    assert sorted(begun) == ["ann"] * 5 + ["bob"]
    assert "bob" in begun[:2]


def test_the_unix_socket_is_this_users_alone_and_wants_no_token(on_tcp: Running) -> None:
    path = Path(on_tcp.settings.operator.socket)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert on_tcp.client().get("/v1/clock")["scale"] == 1.0


def test_on_tcp_the_token_is_wanted_and_enough(url: str, token: str) -> None:
    assert Client(url, token).get("/v1/clock")["scale"] == 1.0
    refused = stranger(url).ask("GET", "/v1/clock")
    assert (refused.status, refused.error["code"]) == (401, "unauthorized")
    assert refused.headers["WWW-Authenticate"].startswith("Bearer")
    assert stranger(url, token[:-1]).ask("GET", "/v1/clock").status == 401
    assert stranger(url, token + "x").ask("GET", "/v1/clock").status == 401


@pytest.mark.parametrize("value", ["", "Bearer", "Bearer ", "Basic {token}", "{token}", "\xff"])
def test_what_is_no_bearer_token_is_refused(url: str, token: str, value: str) -> None:
    shown = value.format(token=token)
    assert stranger(url).ask("GET", "/v1/clock", None, {"Authorization": shown}).status == 401


def test_without_the_token_nothing_changes_and_nothing_is_told(url: str, token: str) -> None:
    fleet = {"machine": [{"name": "a"}]}
    assert stranger(url).ask("PUT", "/v1/fleet", fleet).status == 401
    assert stranger(url).ask("GET", "/v1/schema").status == 401
    assert stranger(url).ask("GET", "/nothing/here").status == 401
    assert Client(url, token).get("/v1/fleet/machines")["machines"] == []


@pytest.mark.parametrize("host", ["localhost", "10.1.2.3:8172", "[fd00::1]:8172", ""])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_a_probe_needs_no_token_and_no_listed_host(
    url: str, path: str, method: str, host: str
) -> None:
    assert stranger(url).ask(method, path, None, {"Host": host}).status == 200


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_head_is_answered_as_get_without_the_body(on_tcp: Running, path: str) -> None:
    with contextlib.closing(UnixConnection(Path(on_tcp.settings.operator.socket))) as connection:
        for _ in range(2):  # and the connection goes on
            told = []
            for method in ("GET", "HEAD"):
                connection.request(method, path)
                answer = connection.getresponse()
                told.append((answer.status, answer.headers["content-type"], answer.read()))
            (status, kind, body), head = told
            assert (status, bool(body)) == (200, True)
            assert head == (status, kind, b"")


def test_head_of_the_metrics_needs_a_token_too(url: str) -> None:
    assert stranger(url).ask("HEAD", "/metrics").status == 401


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:99", "OPS.example:1", "[::1]:80"])
def test_a_host_that_is_ours_is_served(url: str, token: str, host: str) -> None:
    assert Client(url, token).ask("GET", "/v1/clock", None, {"Host": host}).status == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "[::2]:80"])
def test_a_host_that_is_not_ours_is_refused_whatever_the_token(
    url: str, token: str, host: str
) -> None:
    refused = Client(url, token).ask("GET", "/v1/clock", None, {"Host": host})
    assert (refused.status, refused.error["code"]) == (421, "unauthorized")


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://localhost"])
def test_another_origin_is_refused_on_both_sockets(
    on_tcp: Running, url: str, token: str, origin: str
) -> None:
    for client in (on_tcp.client(), Client(url, token)):
        refused = client.ask("GET", "/v1/clock", None, {"Origin": origin})
        assert (refused.status, refused.error["code"]) == (403, "unauthorized")


def test_the_services_own_origin_is_served(url: str, token: str) -> None:
    answer = Client(url, token).ask("GET", "/v1/clock", None, {"Origin": url})
    assert answer.status == 200


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("proxy.example", "https://PROXY.example", 200),
        ("127.0.0.1:99", "https://proxy.example", 200),  # a proxy that sends our name
        ("proxy.example", "http://proxy.example", 403),
        ("proxy.example", "https://proxy.example:444", 403),
        ("proxy.example", "https://ops.example", 403),
        ("proxy.example", None, 200),
        ("ops.example", "http://ops.example", 200),
    ],
)
def test_behind_a_proxy_that_ends_tls_its_origin_is_ours(
    url: str, token: str, host: str, origin: str | None, status: int
) -> None:
    headers = {"Host": host} | ({"Origin": origin} if origin else {})
    assert Client(url, token).ask("GET", "/v1/clock", None, headers).status == status


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_a_body_that_a_page_could_send_is_refused(on_tcp: Running, kind: str) -> None:
    refused = on_tcp.client().ask("PUT", "/v1/fleet", b"{}", {"Content-Type": kind})
    assert (refused.status, refused.error["code"]) == (415, "invalid")


def test_a_refused_client_reads_why_however_long_its_body_is(on_tcp: Running, url: str) -> None:
    fleet = b"{}" + b" " * (20 * 1024 * 1024)
    refused = stranger(url).ask("PUT", "/v1/fleet", fleet)
    assert (refused.status, refused.error["code"]) == (401, "unauthorized")
    too_long = on_tcp.client().ask("POST", "/v1/approvals", fleet)
    assert (too_long.status, too_long.error["code"]) == (413, "limit")


def test_json_with_its_charset_is_json(on_tcp: Running) -> None:
    kind = {"Content-Type": "Application/JSON; charset=utf-8"}
    assert on_tcp.client().ask("PUT", "/v1/fleet", b"{}", kind).status == 200
