"""What every store must keep of rollouts."""

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forewarn.maintenance.model import Changes
from forewarn.maintenance.rollout_model import (
    CheckProgress,
    Rollout,
    RolloutOrder,
    RolloutPolicy,
    RolloutState,
    RolloutTask,
    RolloutUnit,
    UnitState,
)
from forewarn.maintenance.time_windows import Span
from forewarn.store.port import Store
from forewarn.vocabulary import EventSource, EventType, TargetKind
from store.conformance import assert_rolled_back, save
from store.engines import NewStore
from store.values import MINUTE, NOW

TEXTS = st.text(st.characters(exclude_categories=["C"]), max_size=20)
MOMENTS = st.integers(0, 10**6).map(lambda minutes: NOW + minutes * MINUTE)
UNITS = st.builds(
    RolloutUnit,
    name=TEXTS,
    kind=st.sampled_from(TargetKind),
    wave=st.integers(0, 9),
    state=st.sampled_from(UnitState),
    reason=TEXTS,
    drain=st.booleans(),
    maintenance=st.integers(0, 2**53),
    done=st.lists(TEXTS, max_size=2).map(tuple),
    recalled=st.booleans(),
    accepted=st.booleans(),
    changed_at=st.none() | MOMENTS,
    retry_at=st.none() | MOMENTS,
)
ROLLOUTS = st.builds(
    Rollout,
    number=st.integers(1, 2**53),
    task=st.builds(
        RolloutTask,
        event_type=st.sampled_from(EventType),
        source=st.sampled_from(EventSource),
        duration_seconds=st.integers(-1, 9999),
        description=st.none() | TEXTS,
        without_notice=st.booleans(),
    ),
    policy=st.builds(
        RolloutPolicy,
        at_once=st.sampled_from(["1", "10%"]),
        waves=st.sampled_from([(), ("1", "rest")]),
        windows=st.lists(TEXTS, max_size=2).map(tuple),
        blackouts=st.lists(st.builds(Span, MOMENTS, MOMENTS), max_size=2).map(tuple),
        order=st.sampled_from(RolloutOrder),
        approval_until=st.none() | MOMENTS,
        check=TEXTS,
    ),
    units=st.lists(UNITS, max_size=3).map(tuple),
    state=st.sampled_from(RolloutState),
    reason=TEXTS,
    wave=st.integers(0, 9),
    wave_at=st.none() | MOMENTS,
    confirmed=st.booleans(),
    check=st.builds(
        CheckProgress,
        due=st.booleans(),
        run=st.integers(0, 99),
        failed=st.integers(0, 9),
        reason=TEXTS,
        replica=TEXTS,
        began_at=st.none() | MOMENTS,
        lease_until=st.none() | MOMENTS,
        passed_at=st.none() | MOMENTS,
    ),
    requested_by=TEXTS,
    requested_at=MOMENTS,
    changed_by=TEXTS,
    changed_at=MOMENTS,
)


def rollout(number: int, **fields: object) -> Rollout:
    known: dict[str, object] = {
        "task": {"event_type": "Reboot"},
        "policy": {},
        "units": [{"name": "h1", "kind": "host"}],
        "requested_at": NOW,
        "changed_at": NOW,
    }
    return msgspec.convert(known | fields | {"number": number}, Rollout)


class Rollouts:
    """Rollouts by their numbers."""

    @settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
    @given(one=ROLLOUTS)
    def test_a_rollout_is_read_back_exactly(self, new: NewStore, one: Rollout) -> None:
        store = new()
        save(store, Changes(rollouts=(one,)))
        with store.read() as reading:
            assert reading.rollouts() == {one.number: one}

    def test_the_latest_of_a_number_replaces_the_one_before(self, store: Store) -> None:
        save(store, Changes(rollouts=(rollout(2), rollout(1))))
        later = rollout(1, reason="later")
        save(store, Changes(rollouts=(later,)))
        with store.read() as reading:
            assert list(reading.rollouts().items()) == [(1, later), (2, rollout(2))]
            assert reading.rollouts([2, 7]) == {2: rollout(2)}
            assert reading.rollouts([]) == {}

    def test_what_is_removed_is_gone(self, store: Store) -> None:
        save(store, Changes(rollouts=(rollout(1), rollout(2))))
        save(store, Changes(rollouts=(rollout(3),), removed_rollouts=(1, 9)))
        with store.read() as reading:
            assert list(reading.rollouts()) == [2, 3]

    def test_a_rollout_is_rolled_back_with_its_transaction(self, store: Store) -> None:
        save(store, Changes(rollouts=(rollout(1),)))
        assert_rolled_back(store, lambda t: t.save(Changes(rollouts=(rollout(2),))))
        with store.read() as reading:
            assert list(reading.rollouts()) == [1]
