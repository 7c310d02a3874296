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
from server.exchange import Exchanges
from server.running import Running, UnixConnection, settings_in
from stories import stories_beside


@pytest.fixture(scope="module")
def on_tcp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    wanted = settings_in(
        tmp_path_factory.mktemp("service"),
        listen="127.0.0.1:0",
        hosts=["ops.example", "https://proxy.example"],
    )
    with Running(wanted, InMemoryStore()) as running:
        yield running


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


@pytest.mark.parametrize("rows", stories_beside(__file__, "auth.txt"))
def test_who_asks_is_let_in_or_refused(on_tcp: Running, rows: list[tuple[int, str]]) -> None:
    story = Exchanges(on_tcp)
    token = Path(on_tcp.settings.operator.token_file).read_text(encoding="ascii").strip()
    story.bound |= {"token": token, "cut": token[:-1], "longer": f"{token}x"}
    story.bound |= {"url": on_tcp.opened.operators[1], "long": " " * (20 * 1024 * 1024)}
    assert story.play("auth.txt", rows)


def test_the_unix_socket_is_this_users_alone(on_tcp: Running) -> None:
    path = Path(on_tcp.settings.operator.socket)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


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
