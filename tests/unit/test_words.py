"""What people write, and how it is shown: words.txt, and what holds for any text."""

import itertools
import re
from datetime import UTC, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import NOW
from forewarn import times
from forewarn.maintenance import time_windows, turns, units, webhooks
from forewarn.maintenance.model import Refused
from forewarn.maintenance.time_windows import Span
from forewarn.maintenance.units import TurnPolicy
from forewarn.maintenance.webhooks import Webhook
from forewarn.vocabulary import ErrorCode
from stories import Told, listed, stories_beside

BERLIN = ZoneInfo("Europe/Berlin")
HOOK = Webhook(
    name="chat",
    url="https://chat.example/services/T0/B0/hidden",
    secret="whsec_aGlkZGVu",
    cursor=(3, 0),
)


def written(told: str) -> str:
    """Return a text with its repetitions, such as `9*12`, and the ends of its lines."""
    repeated = re.sub(r"(\w)\*(\d+)", lambda found: found[1] * int(found[2]), told)
    return repeated.replace(r"\n", "\n")


def at(told: str) -> datetime:
    return datetime.fromisoformat(told).replace(tzinfo=UTC)


def span_of(told: str) -> Span:
    return Span(*map(at, told.split("/")))


class Words(Told):
    """Texts and their meanings, a line each."""

    def span(self, text: str, seconds: str) -> None:
        assert times.span(text) == timedelta(seconds=int(seconds))

    def no_span(self, *texts: str, says: str) -> None:
        for text in texts:
            with pytest.raises(times.InvalidTime, match=says):
                times.span(written(text))

    def time(self, text: str, told: str) -> None:
        assert times.moment(text) == at(told)

    def from_now(self, text: str, seconds: str) -> None:
        assert times.moment(text) == timedelta(seconds=int(seconds))

    def no_time(self, *texts: str, says: str) -> None:
        for text in texts:
            with pytest.raises(times.InvalidTime, match=says):
                times.moment(text)

    def duration(self, text: str, seconds: str) -> None:
        assert times.duration_seconds(text) == int(seconds)

    def shown(self, moment: str, told: str, hour: str) -> None:
        found = datetime.fromisoformat(moment)
        assert (times.shown(found), times.hour(found), times.shown(None)) == (told, hour, "-")

    def shown_span(self, seconds: str, told: str) -> None:
        assert times.shown_span(float(seconds) if seconds else None) == told

    def brief(self, moment: str, told: str, now: str) -> None:
        assert times.brief(datetime.fromisoformat(moment), datetime.fromisoformat(now)) == told

    def coming(self, text: str, told: str) -> None:
        found = times.coming(text)
        assert (f"{found:%H:%M}" if isinstance(found, time) else str(found)) == told

    def not_coming(self, *texts: str) -> None:
        for text in texts:
            with pytest.raises(times.InvalidTime, match="18:00"):
                times.coming(text)

    def next(self, of_day: str, told: str, now: str) -> None:
        found = times.next_time_of_day(time.fromisoformat(of_day), at(now), BERLIN)
        assert found == at(told)

    # Windows.

    def opens(
        self,
        *told: str,
        now: str = "2026-11-22 12:00",
        zone: str = "UTC",
        blackouts: str = "",
    ) -> None:
        """Windows, and the first times at which they are open, which have a `/`."""
        windows = [text for text in told if "/" not in text]
        spans = [span_of(text) for text in told if "/" in text]
        cut = [span_of(text) for text in listed(blackouts)]
        found = time_windows.following(windows, zone, cut, at(now))
        assert list(found[: len(spans)]) == spans
        assert spans or not found

    def no_window(self, *texts: str) -> None:
        for text in texts:
            with pytest.raises(ValueError, match="invalid window"):
                time_windows.check((text,), "UTC")

    def no_zone(self, *texts: str) -> None:
        for text in texts:
            with pytest.raises(ValueError, match="time zone"):
                time_windows.check((), text)

    # Webhooks.

    def url(self, *texts: str, insecure: str = "") -> None:
        for text in texts:
            webhooks.judge_url(text, insecure=insecure == "yes")

    def no_url(self, *texts: str, insecure: str = "", where: str = "url") -> None:
        for text in texts:
            with pytest.raises(Refused) as refusal:
                webhooks.judge_url(written(text), insecure=insecure == "yes")
            facts = {"where": where}
            assert (refusal.value.code, refusal.value.facts) == (ErrorCode.INVALID, facts), text

    def shown_url(self, url: str, told: str) -> None:
        assert Webhook(name="x", url=url, secret="", cursor=(0, 0)).shown_url == told

    # Policies.

    def value(self, kind: str, text: str) -> Any:
        if kind == "tags":
            return listed(text.replace(":", "="))
        return listed(text) if kind == "waves" else text

    def reads(self, kind: str, *texts: str) -> None:
        for text in texts:
            value = self.value(kind, text)
            assert getattr(units, f"read_{kind}")(value) == value

    def reads_not(self, kind: str, *texts: str) -> None:
        for text in texts:
            with pytest.raises(ValueError, match="expected"):
                getattr(units, f"read_{kind}")(self.value(kind, text))

    def tags(self, *told: str) -> None:
        texts = [each.replace(":", "=") for each in told]
        assert units.read_tags(texts) == dict(each.split(":") for each in told)

    def rest(self, count: str, amount: str) -> None:
        assert units.amount("rest", int(count)) == int(amount)

    def no_policy(self, where: str, **policy: Any) -> None:
        if "windows" in policy:
            policy["windows"] = (policy["windows"],)
        with pytest.raises(Refused) as refusal:
            turns.check_policy(TurnPolicy(**policy))
        assert (refusal.value.code, refusal.value.facts) == (ErrorCode.INVALID, {"where": where})


@pytest.mark.parametrize("rows", stories_beside(__file__, "words.txt"))
def test_the_story_holds(rows: list[tuple[int, str]]) -> None:
    assert Words().play("words.txt", rows)


@given(st.integers(0, 99_999_999))
def test_a_span_that_is_shown_reads_the_same_again(seconds: int) -> None:
    assert times.span(times.shown_span(seconds).replace(" ", "")) == timedelta(seconds=seconds)


@given(st.text(max_size=30))
def test_any_text_is_a_time_or_refused(text: str) -> None:
    try:
        read = times.moment(text)
    except times.InvalidTime:
        return
    assert isinstance(read, timedelta) or read.tzinfo is not None


def test_without_a_zone_a_time_of_day_is_the_machines_own() -> None:
    found = times.next_time_of_day(time(18), NOW)
    assert found.astimezone().time() == time(18)
    assert timedelta(0) < found - NOW <= timedelta(days=1)


def test_every_day_of_a_year_has_its_window_whatever_the_clocks_do() -> None:
    windows = time_windows.following(("daily 02:30-03:30",), str(BERLIN), (), at("2026-01-01"))
    found = windows[:365]
    assert len({span.opens.date() for span in found}) == 365
    assert all(span.opens < span.closes for span in found)
    assert all(before.closes <= after.opens for before, after in itertools.pairwise(found))


def test_without_windows_it_is_always_open_but_for_blackouts() -> None:
    blackout = Span(at("2026-11-22 00:00"), at("2026-11-23 00:00"))
    before, after = time_windows.following((), "UTC", (blackout,), at("2026-11-21 12:00"))
    assert before.closes == blackout.opens
    assert (after.opens, after.closes) == (blackout.closes, time_windows.ENDLESS)
    with pytest.raises(Refused) as refusal:
        turns.check_policy(TurnPolicy(blackouts=(Span(NOW, NOW),)))
    assert refusal.value.facts == {"where": "policy.blackouts"}


def test_there_are_20_windows_at_most() -> None:
    assert time_windows.MAX_WINDOWS == 20
    time_windows.check(["daily 01:00-02:00"] * 20, "UTC")
    with pytest.raises(ValueError, match="at most"):
        time_windows.check(["daily 01:00-02:00"] * 21, "UTC")


def test_an_alert_of_a_webhook_shows_nothing_that_is_secret() -> None:
    behind = Webhook(
        name="chat",
        url=HOOK.url,
        secret=HOOK.secret,
        cursor=HOOK.cursor,
        waiting_since=NOW,
        trouble="it answered with status 503",
    )
    (alert,) = webhooks.alerts_of([HOOK, behind], NOW + webhooks.BEHIND)
    assert "https://chat.example/..." in alert.message
    assert "503" in alert.message
    assert "hidden" not in alert.message
