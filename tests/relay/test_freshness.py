"""How old a relay's documents are, and whether guests are answered from them."""

from forewarn.relay import cache
from forewarn.relay.cache import Freshness

START = Freshness(true_until=100.0)


def test_documents_are_as_the_service_has_them_while_a_replica_holds_the_request() -> None:
    known = START.heard(200.0)
    assert known.age(10_000.0) == 0
    assert known.shown_age(10_000.0) == 0


def test_a_path_that_the_system_found_dead_may_have_been_so_since_its_last_probe() -> None:
    known = START.heard(200.0).lost(300.0, 250.0, is_dark=True)
    assert known.true_until == 300.0 - cache.DARK_SECONDS
    soon = START.heard(200.0).lost(300.0, 299.0, is_dark=True)
    assert soon.true_until == 299.0


def test_a_replica_that_froze_has_told_nothing_since_it_was_asked() -> None:
    known = START.heard(200.0).lost(300.0, 230.0, is_dark=False)
    assert known.true_until == 230.0
    again = known.lost(400.0, 390.0, is_dark=True)
    assert again.true_until == 230.0  # nothing was heard meanwhile


def test_only_an_age_above_that_of_a_change_of_replicas_is_shown() -> None:
    known = START.heard(200.0).lost(200.0, 200.0, is_dark=False)
    assert known.shown_age(200.0 + cache.SHOWN_SECONDS) == 0
    assert known.shown_age(206.9) == 6


def test_guests_are_answered_for_as_long_as_the_settings_say() -> None:
    known = START.heard(200.0).lost(200.0, 200.0, is_dark=False)
    assert known.serves(10_000.0, 0)
    assert known.serves(230.0, 30)
    assert not known.serves(230.1, 30)


def test_a_token_is_revoked_once_it_has_been_refused_for_a_while() -> None:
    known = START.heard(200.0).refused(300.0)
    assert known.age(300.0) == 0
    assert known.serves(304.9, 0)
    again = known.refused(304.0)
    assert not again.serves(305.0, 0)
    assert again.heard(306.0).serves(306.0, 0)
