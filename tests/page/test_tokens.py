"""A browser's token beside its stories: files, streams, threads, TLS, and a store that is slow."""

import re
import ssl
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

import patience
from forewarn.client import transport
from forewarn.clock import ManualClock
from forewarn.control import accounts
from forewarn.maintenance.accounts import Token
from forewarn.maintenance.model import Refused
from forewarn.server import settings
from forewarn.server.operator.administration import PAGE_TOKEN_LASTS
from forewarn.store.sqlite import InMemoryStore
from forewarn.vocabulary import AccessRole, ErrorCode, TokenAudience
from page.site import FORM
from page.test_stories import Pages
from server.running import NOON, Flaky, Running, Stuck, settings_in
from store.shared import SharedStore


def test_a_guess_costs_the_store_nothing(tmp_path: Path) -> None:
    store = Flaky(InMemoryStore())
    with Running(settings_in(tmp_path, listen="127.0.0.1:0"), store) as running:
        store.away = True
        Pages(running).check("as stranger FORM /login {token: guessed} -> 401")


def test_of_two_that_have_read_a_link_at_once_one_is_logged_in(tmp_path: Path) -> None:
    token = Token(
        name="ann/1",
        role=AccessRole.VIEWER,
        digest="of the link",
        audience=TokenAudience.PAGE,
        created_by="ann",
        created_at=NOON,
        expires_at=NOON + PAGE_TOKEN_LASTS,
    )
    with Running(settings_in(tmp_path), InMemoryStore(), ManualClock(NOON)) as running:
        plane = running.plane
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
        second = Pages(left)
        second.log_in("other")
        with replica("one") as lost:
            first = Pages(lost)
            first.log_in("a")
            for pages, name, made_by in ((second, "a", first), (first, "other", second)):
                pages.bound[name] = made_by.bound[name]
                pages.cookie(name)
                pages.check(f"until as @{name} GET /search?q=1 -> 303")
            spent = first.bound["latest"]  # a link is good once
            second.check(f"as stranger FORM /login {{token: {spent}}} -> 401")
            second.check("as @other FORM /logout {} -> 303")
            first.check("until as @other GET /search?q=1 -> 401")
        second.check(
            "streams a",
            "GET /v1/tokens -> {tokens.#: 1, tokens.0.name: $name}",
            "DELETE /v1/tokens?name=$name",
            "POST /v1/holds {kind: everything} -> 201",
            "ends a",
            "as @a GET /search?q=1 -> 401",
        )


def test_over_tls_the_cookie_never_goes_over_plain_http(tmp_path: Path) -> None:
    certificates = Path(__file__).parents[1] / "operator" / "certificates"
    trusted, key = str(certificates / "first.pem"), str(certificates / "first.key")
    wanted = settings_in(tmp_path, listen="127.0.0.1:0", tls_certificate=trusted, tls_key=key)
    with Running(wanted, InMemoryStore()) as running:
        link = running.client().ask("POST", "/v1/tokens/page", {}).json["url"]
        url, _, secret = link.partition("#")
        answer = transport.request(
            "POST",
            url,
            seconds=patience.SECONDS,
            headers=[*FORM.items(), ("Origin", url.removesuffix("/login"))],
            body=f"token={secret}".encode(),
            tls=ssl.create_default_context(cafile=trusted),
        )
    assert answer.status == 303
    assert "secure" in str(answer.headers).lower()


def test_a_page_says_what_it_had_when_it_was_asked_for_not_when_ready(tmp_path: Path) -> None:
    store = Stuck()
    wanted = settings_in(tmp_path, listen="127.0.0.1:0")
    with Running(wanted, store, ManualClock(NOON)) as running:
        root = running.client()
        root.ask("GET", "/")  # what is read once is read
        with ThreadPoolExecutor(1) as other:
            store.stick()
            asked = other.submit(root.ask, "GET", "/?range=12h")
            assert store.asked.acquire(timeout=patience.SECONDS)
            assert root.ask("POST", "/v1/tokens", {"name": "ann", "role": "viewer"}).status == 201
            store.answers.set()
            late = asked.result().body.decode()
        now = root.ask("GET", "/").body.decode()
    state = r'data-state="([^"]+)"'
    assert re.findall(state, late) != re.findall(state, now)
