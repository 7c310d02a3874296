"""What people write, how it is shown, and notice: words.txt, and what holds for any text."""

import itertools
import random
import re
from datetime import UTC, datetime, time, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from builders import MINUTE, NOW, SECOND
from forewarn import times
from forewarn.maintenance import notice, time_windows, turns, units, webhooks
from forewarn.maintenance.model import Refused
from forewarn.maintenance.notice import NO_STALLS, OUTAGE_SECONDS, RECENT_SECONDS, Stall
from forewarn.maintenance.time_windows import Span
from forewarn.maintenance.units import TurnPolicy
from forewarn.maintenance.webhooks import Webhook
from forewarn.vocabulary import ErrorCode, EventType
from stories import Told, elapsed, listed, stories_beside

BERLIN = ZoneInfo("Europe/Berlin")


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

    stalls: tuple[Stall, ...] = NO_STALLS

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

    # Notice.

    def least(self, kind: str, span: str, minutes: str = "") -> None:
        assert notice.minimum(EventType(kind), int(minutes) if minutes else None) == elapsed(span)

    def whole(self, span: str, told: str) -> None:
        assert notice.whole_seconds(NOW + elapsed(span)) == NOW + elapsed(told)

    def not_before(self, span: str, least: str, zone: str = "0") -> None:
        after = elapsed(span)
        asked = (NOW + after).astimezone(timezone(timedelta(hours=int(zone))))
        assert notice.not_before(asked, elapsed(least), NOW) == NOW + after

    def forget_stalls(self) -> None:
        self.stalls = NO_STALLS

    def gap(self, begin: str, end: str, owed: str, *stalls: str) -> None:
        self.stalls, found = notice.end_gap(self.stalls, float(begin), float(end))
        assert found == float(owed)
        assert [f"{stall.ended:g}:{stall.seconds:g}" for stall in self.stalls] == [*stalls]

    def unread(self, begin: str, now: str, seconds: str) -> None:
        assert notice.unread_seconds(self.stalls, float(begin), float(now)) == float(seconds)

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
    hook = Webhook(
        name="chat",
        url="https://chat.example/services/T0/B0/hidden",
        secret="whsec_aGlkZGVu",
        cursor=(3, 0),
    )
    behind = replace(hook, waiting_since=NOW, trouble="it answered with status 503")
    (alert,) = webhooks.alerts_of([hook, behind], NOW + webhooks.BEHIND)
    assert "https://chat.example/..." in alert.message
    assert "503" in alert.message
    assert "hidden" not in alert.message


MOMENTS = st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1)).map(
    lambda moment: moment.replace(tzinfo=UTC)
)


@given(MOMENTS)
def test_not_before_is_the_least_notice_rounded_up_to_a_second(now: datetime) -> None:
    chosen = notice.not_before(None, 15 * MINUTE, now)
    assert chosen.microsecond == 0
    assert timedelta(0) <= chosen - (now + 15 * MINUTE) < SECOND


@pytest.mark.parametrize("seed", range(20))
def test_no_notice_loses_more_than_five_seconds_to_any_stalls(seed: int) -> None:
    """Any notice of up to 15 minutes, between any two instants at which the loop ran."""
    chance = random.Random(seed)
    now, stalls = 0.0, NO_STALLS
    ran: list[tuple[float, float, float]] = []
    for _ in range(300):
        gap = chance.choice([0.25, 0.9, 1.1, 2, 4.4, 5, 7, 60, 400])
        stalls, owed = notice.end_gap(stalls, now, now + gap)
        now += gap
        ran.append((now, gap if gap > notice.STALL_SECONDS else 0.0, owed))
        assert sum(each.seconds for each in stalls) <= OUTAGE_SECONDS
        assert len(stalls) <= OUTAGE_SECONDS / notice.STALL_SECONDS
        unread = given_back = 0.0
        for ended, stalled, moved in reversed(ran):
            if now - ended > RECENT_SECONDS:
                break
            unread, given_back = unread + stalled, given_back + moved
            assert unread - given_back <= OUTAGE_SECONDS + 1e-6
    assert sum(moved for _, _, moved in ran) <= sum(stalled for _, stalled, _ in ran) + 1e-6


def test_the_last_second_of_all_times_is_too_far_ahead() -> None:
    with pytest.raises(Refused):
        notice.not_before(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC), MINUTE, NOW)
