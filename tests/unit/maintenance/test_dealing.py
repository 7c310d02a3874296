"""What applying a fleet changes, and how domains are dealt."""

from typing import Any

import msgspec
import pytest

from builders import FLEET, MINUTE, NOW, Bench, Snapshot, applied, mint
from forewarn.maintenance import commands, fleet_file
from forewarn.maintenance.model import Hold, HoldKind, Profile, Refused
from forewarn.vocabulary import ErrorCode, EventType, ScopeKind

MINT = mint("d")


def read(**tables: Any) -> fleet_file.Fleet:
    return msgspec.convert(tables, fleet_file.Fleet)


def set_of(*machines: dict[str, Any] | str, **more: Any) -> fleet_file.Fleet:
    members = [{"name": m} if isinstance(m, str) else m for m in machines]
    return read(availability_set=[{"name": "s", "update_domains": 3, **more, "machines": members}])


def apply(
    snapshot: Snapshot, wanted: fleet_file.Fleet, *, prune: bool = False
) -> tuple[fleet_file.Applied, Snapshot]:
    outcome = fleet_file.apply(snapshot.world(), wanted, prune=prune, mint=MINT)
    return outcome, applied(snapshot, outcome.changes)


def refusal_of(snapshot: Snapshot, wanted: fleet_file.Fleet, *, prune: bool = False) -> Refused:
    with pytest.raises(Refused) as refusal:
        fleet_file.apply(snapshot.world(), wanted, prune=prune, mint=MINT)
    return refusal.value


def domains(snapshot: Snapshot) -> dict[str, int]:
    return {machine.name: machine.update_domain for machine in snapshot.machines.values()}


def test_a_first_fleet_is_added_whole() -> None:
    outcome, snapshot = apply(Snapshot(), FLEET)
    assert len(outcome.added) == 15
    assert outcome.added[:2] == ("web-0", "web-1")
    assert (outcome.changed, outcome.removed, outcome.unchanged, outcome.missing) == ((), (), 0, ())
    assert {s.key: s.incarnation for s in snapshot.scopes.values()} == dict.fromkeys(
        ["web", "batch", "firm", "shop", "bastion"], 0
    )
    web = snapshot.machines["web-4"]
    assert (web.name, web.scope, web.host, web.address) == ("web-4", "web", "h1", "10.0.0.14")
    assert web.vm_id.startswith("dddddddd-")
    shop = snapshot.machines["frontend_in_1"]
    assert (shop.name, shop.role, shop.scope) == ("FrontEnd_IN_1", "FrontEnd", "shop")
    batch = snapshot.scopes["batch"]
    assert (batch.name, batch.kind, batch.update_domains) == ("batch", ScopeKind.SCALE_SET, 2)
    assert batch.priority == "low"
    assert snapshot.scopes["firm"].terminate_notice_minutes == 10
    assert snapshot.scopes["shop"].automatically_approve == (EventType.REBOOT,)


def test_domains_are_dealt_to_the_emptiest_and_hosts_share_theirs() -> None:
    _, snapshot = apply(
        Snapshot(),
        set_of(
            {"name": "a", "host": "h1"},
            {"name": "b", "host": "h2"},
            {"name": "c", "host": "h1"},
            {"name": "d"},
            {"name": "e"},
        ),
    )
    assert domains(snapshot) == {"a": 0, "b": 1, "c": 0, "d": 2, "e": 1}


def test_a_given_domain_is_kept_and_counts_before_the_dealt() -> None:
    _, snapshot = apply(
        Snapshot(), set_of("a", "b", {"name": "c", "update_domain": 0, "host": "h"},
                           {"name": "d", "host": "h"})
    )  # fmt: skip
    assert domains(snapshot) == {"a": 1, "b": 2, "c": 0, "d": 0}


def test_fault_domains_are_dealt_among_three_and_kept_where_given() -> None:
    wanted = set_of("a", "b", "c", "d", {"name": "e", "fault_domain": 2}, update_domains=1)
    _, snapshot = apply(Snapshot(), wanted)
    assert [m.fault_domain for m in snapshot.machines.values()] == [0, 1, 0, 1, 2]


def places(snapshot: Snapshot) -> dict[str, tuple[int, int]]:
    return {m.name: (m.update_domain, m.fault_domain) for m in snapshot.machines.values()}


def test_of_the_two_domains_only_the_one_that_is_not_given_is_dealt() -> None:
    _, snapshot = apply(
        Snapshot(),
        set_of(
            {"name": "a", "update_domain": 1},
            {"name": "b", "update_domain": 1},
            {"name": "c", "fault_domain": 2},
            {"name": "d", "fault_domain": 2},
        ),
    )
    assert places(snapshot) == {"a": (1, 0), "b": (1, 1), "c": (0, 2), "d": (2, 2)}


def test_a_host_shares_its_domains_whether_they_were_dealt_or_given() -> None:
    on_one = [{"name": "a", "host": "h1"}, {"name": "b", "host": "h2"}, {"name": "c", "host": "h1"}]
    _, dealt = apply(Snapshot(), set_of(*on_one))
    assert places(dealt) == {"a": (0, 0), "b": (1, 1), "c": (0, 0)}
    first = {"name": "a", "host": "h", "update_domain": 0, "fault_domain": 0}
    _, given = apply(Snapshot(), set_of(first, {"name": "b", "host": "h"}))
    assert places(given) == {"a": (0, 0), "b": (0, 0)}


def test_a_machine_takes_its_profile_from_the_file_and_its_role_from_its_service() -> None:
    _, snapshot = apply(Snapshot(), FLEET)
    roles = {m.name: m.role for m in snapshot.machines.values() if m.role != ""}
    assert roles == {f"FrontEnd_IN_{n}": "FrontEnd" for n in range(3)}
    _, other = apply(Snapshot(), set_of({"name": "a", "location": "westeurope", "zone": "2"}))
    assert other.machines["a"].profile == Profile(location="westeurope", zone="2")


def test_a_dealt_domain_stays_when_the_file_is_applied_again() -> None:
    _, first = apply(Snapshot(), set_of("a", "b", "c"))
    outcome, second = apply(first, set_of("c", "b", "a"))
    assert domains(second) == domains(first) == {"a": 0, "b": 1, "c": 2}
    assert outcome.unchanged == 3
    assert not outcome.changes
    assert {m.vm_id for m in first.machines.values()} == {m.vm_id for m in second.machines.values()}


def test_a_machine_that_the_file_leaves_out_keeps_its_place() -> None:
    _, first = apply(Snapshot(), set_of("a", "b", "c"))
    outcome, second = apply(first, set_of("d"))
    assert outcome.missing == ("a", "b", "c")
    assert outcome.added == ("d",)
    assert outcome.removed == ()
    assert domains(second) == {"a": 0, "b": 1, "c": 2, "d": 0}


def test_a_host_of_a_machine_that_is_left_out_still_decides() -> None:
    _, first = apply(Snapshot(), set_of("x", {"name": "a", "host": "h"}))
    _, second = apply(first, set_of({"name": "b", "host": "h"}))
    assert domains(second)["b"] == domains(second)["a"] == 1
    assert second.machines["b"].fault_domain == second.machines["a"].fault_domain == 1


def test_where_a_host_has_machines_in_two_domains_the_stores_order_does_not_decide() -> None:
    given = [{"name": n, "host": "h", "update_domain": d} for n, d in (("a", 2), ("b", 0))]
    _, snapshot = apply(Snapshot(), set_of(*given))
    turned = dict(reversed(snapshot.machines.items()))
    for machines in (snapshot.machines, turned):
        known = msgspec.structs.replace(snapshot, machines=machines)
        _, after = apply(known, set_of({"name": "c", "host": "h"}))
        assert after.machines["c"].update_domain == 2


def test_pruning_removes_machines_and_emptied_scopes() -> None:
    _, first = apply(Snapshot(), FLEET)
    outcome, second = apply(first, read(machine=[{"name": "bastion", "address": "10.0.3.10"}]),
                            prune=True)  # fmt: skip
    assert len(outcome.removed) == 14
    assert outcome.missing == ()
    assert outcome.unchanged == 1
    assert list(second.machines) == ["bastion"]
    assert list(second.scopes) == ["bastion"]


def test_a_prune_that_leaves_no_machine_is_refused_unless_it_is_meant() -> None:
    _, first = apply(Snapshot(), FLEET)
    hollow = read(availability_set=[{"name": "web", "update_domains": 3}])
    for file in (read(), hollow):
        refused = refusal_of(first, file, prune=True)
        assert refused.code is ErrorCode.CONFLICT
        assert refused.facts == {"machines": 15}
        assert len(apply(first, file)[0].missing) == 15
        meant = fleet_file.apply(first.world(), file, prune=True, mint=MINT, allow_empty=True)
        assert len(meant.removed) == 15
    outcome, _ = apply(Snapshot(), hollow, prune=True)
    assert [scope.name for scope in outcome.changes.scopes] == ["web"]


def test_holds_of_what_is_removed_are_told() -> None:
    _, first = apply(Snapshot(), FLEET)
    holds = tuple(
        Hold(kind=kind, name=name, reason="", by="ann", at=NOW)
        for kind, name in (
            (HoldKind.MACHINE, "web-0"),
            (HoldKind.MACHINE, "bastion"),
            (HoldKind.SCOPE, "bastion"),
            (HoldKind.HOST, "bastion"),
            (HoldKind.EVERYTHING, ""),
        )
    )
    held = msgspec.structs.replace(first, holds=holds)
    assert fleet_file.remove(held.world(), ["web-0"]).held == holds[:1]
    assert fleet_file.remove(held.world(), ["Bastion"]).held == holds[1:3]
    pruned, _ = apply(held, read(machine=[{"name": "web-0"}, {"name": "z"}]), prune=True)
    assert pruned.held == holds[1:3]
    assert [machine.name for machine in pruned.placed] == ["web-0", "z"]
    assert apply(held, FLEET, prune=True)[0].held == ()


def test_an_empty_scope_of_the_file_is_kept_and_one_outside_it_goes_only_by_pruning() -> None:
    _, first = apply(Snapshot(), read(scale_set=[{"name": "empty"}]))
    kept, second = apply(first, read(machine=[{"name": "a"}]))
    assert kept.changes.removed_scopes == ()
    assert set(second.scopes) == {"empty", "a"}
    pruned, third = apply(second, read(machine=[{"name": "a"}]), prune=True)
    assert pruned.changes.removed_scopes == ("empty",)
    assert set(third.scopes) == {"a"}


def test_a_changed_machine_is_told_and_keeps_its_identity() -> None:
    _, first = apply(Snapshot(), set_of("a", "b"))
    outcome, second = apply(first, set_of({"name": "A", "host": "h9", "tags": {"role": "x"}}, "b"))
    assert outcome.changed == ("A",)
    assert outcome.unchanged == 1
    assert [m.name for m in outcome.changes.machines] == ["A"]
    assert second.machines["a"].vm_id == first.machines["a"].vm_id
    assert second.machines["a"].tags == (("role", "x"),)


def test_a_machine_that_moves_never_meets_an_equal_incarnation() -> None:
    bench = Bench()
    bench.ask(EventType.REBOOT, "web-1")
    bench.cancel("1.1")
    assert bench.scope("web").incarnation == 2
    _, after = apply(bench.snapshot, read(availability_set=[
        {"name": "other", "machines": [{"name": "web-0", "address": "10.0.0.10"}]}]))  # fmt: skip
    assert after.machines["web-0"].scope == "other"
    assert after.scopes["other"].incarnation == 3
    assert after.scopes["web"].incarnation == 2


def test_a_machine_that_moves_behind_one_that_stays_raises_the_number_all_the_same() -> None:
    bench = Bench(read(availability_set=[
        {"name": "s", "machines": [{"name": "a"}, {"name": "b"}, {"name": "c"}]},
        {"name": "t", "machines": [{"name": "d"}]}]))  # fmt: skip
    for number, machine in enumerate(("a", "d"), 1):
        bench.ask(EventType.REBOOT, machine)
        bench.cancel(f"{number}.1")
    assert (bench.scope("s").incarnation, bench.scope("t").incarnation) == (2, 2)
    outcome, after = apply(bench.snapshot, read(availability_set=[
        {"name": "s", "machines": [{"name": "a", "host": "h9"}]},
        {"name": "t", "machines": [{"name": "b"}]}]))  # fmt: skip
    assert outcome.changed == ("a", "b")
    assert (after.scopes["s"].incarnation, after.scopes["t"].incarnation) == (2, 3)


def test_moving_from_a_scope_that_never_had_an_event_moves_nothing() -> None:
    _, after = apply(Bench().snapshot, read(availability_set=[
        {"name": "other", "machines": [{"name": "web-0", "address": "10.0.0.10"}]}]))  # fmt: skip
    assert after.scopes["other"].incarnation == 0


def test_the_last_machine_that_moves_out_takes_its_scope_with_it() -> None:
    _, first = apply(Snapshot(), read(machine=[{"name": "a"}]))
    outcome, second = apply(first, set_of("a"))
    assert outcome.changes.removed_scopes == ("a",)
    assert set(second.scopes) == {"s"}
    assert second.machines["a"].scope == "s"


def test_a_moved_machine_is_dealt_a_domain_of_its_new_scope() -> None:
    _, first = apply(Snapshot(), set_of("a", "b", "c"))
    _, second = apply(first, read(availability_set=[
        {"name": "t", "update_domains": 2, "machines": [{"name": "c"}]}]))  # fmt: skip
    assert second.machines["c"].update_domain == 0


@pytest.mark.parametrize("status", ["Scheduled", "Started"])
def test_what_a_live_event_names_stays_where_it_is(status: str) -> None:
    bench = Bench()
    bench.ask(EventType.REBOOT, "web-0", no_notice=status == "Started")
    event_id = bench.event("1.1").id
    kept = [{"name": f"web-{n}", "address": f"10.0.0.{10 + n}"} for n in range(1, 6)]
    changes = [
        set_of("web-0"),  # moved to another scope
        read(availability_set=[{"name": "web", "update_domains": 3, "machines": [
            {"name": "web-0", "update_domain": 2}, *kept]}]),  # another domain
        read(availability_set=[{"name": "web", "update_domains": 3, "machines": [
            {"name": "WEB-0"}, *kept]}]),  # another spelling
    ]  # fmt: skip
    for wanted in changes:
        refused = refusal_of(bench.snapshot, wanted)
        assert refused.code is ErrorCode.CONFLICT
        assert refused.facts == {"machine": "web-0", "event_id": event_id}
    other = read(machine=[{"name": "other"}])
    assert refusal_of(bench.snapshot, other, prune=True).facts["event_id"] == event_id
    with pytest.raises(Refused):
        fleet_file.remove(bench.snapshot.world(), ["web-0"])


@pytest.mark.parametrize("failed", [True, False])
def test_a_machine_that_is_still_down_is_not_moved_but_may_be_removed(*, failed: bool) -> None:
    """In its new update domain it would count as up, and another of its scope might start."""
    bench = Bench()
    bench.policy = msgspec.structs.replace(bench.policy, settle=MINUTE)
    bench.ask(EventType.REBOOT, "web-0", no_notice=True)
    bench.finish("1.1", succeeded=not failed)
    assert bench.operation("1.1").down
    kept = [{"name": f"web-{n}", "address": f"10.0.0.{10 + n}"} for n in range(1, 6)]
    elsewhere = {"name": "web-0", "address": "10.0.0.10", "update_domain": 2}
    moved = read(availability_set=[
        {"name": "web", "update_domains": 3, "machines": [elsewhere, *kept]}])  # fmt: skip
    refused = refusal_of(bench.snapshot, moved)
    assert refused.code is ErrorCode.CONFLICT
    assert refused.facts == {"machine": "web-0", "event_id": bench.event("1.1").id}
    fleet_file.remove(bench.snapshot.world(), ["web-0"])
    if failed:
        bench.decide(commands.acknowledge_failures, ["1.1"], by="ann", even_if_down=True)
    else:
        bench.let_pass(MINUTE)
    assert not bench.operation("1.1").down
    apply(bench.snapshot, moved)


def test_what_is_over_holds_nobody_and_harmless_changes_pass() -> None:
    bench = Bench()
    bench.ask(EventType.REBOOT, "web-0")
    host = {"name": "web-0", "address": "10.0.0.99"}
    harmless = read(availability_set=[{"name": "web", "update_domains": 3, "machines": [host]}])
    outcome, _ = apply(bench.snapshot, harmless)
    assert outcome.changed == ("web-0",)
    bench.cancel("1.1")
    outcome, _ = apply(bench.snapshot, read(machine=[{"name": "other"}]), prune=True)
    assert len(outcome.removed) == 15


def test_a_scope_does_not_change_its_kind() -> None:
    _, first = apply(Snapshot(), set_of("a"))
    refused = refusal_of(first, read(scale_set=[{"name": "S"}]))
    assert refused.code is ErrorCode.CONFLICT
    assert refused.facts == {"where": "scale_set[0]"}
    assert refused.message.startswith("at scale_set[0]: ")


def test_an_address_of_a_machine_outside_the_file_is_not_taken_over() -> None:
    _, first = apply(Snapshot(), read(machine=[{"name": "a", "address": "10.0.0.1"},
                                               {"name": "z"}]))  # fmt: skip
    wanted = read(machine=[{"name": "b", "address": "10.0.0.1"}, {"name": "y"}])
    refused = refusal_of(first, wanted)
    assert refused.code is ErrorCode.CONFLICT
    assert refused.facts == {"machine": "a", "other": "b"}
    outcome, _ = apply(first, wanted, prune=True)
    assert outcome.removed == ("a", "z")


def test_fewer_domains_than_machines_stand_in_are_refused() -> None:
    _, first = apply(Snapshot(), set_of("a", "b", "c"))
    named = refusal_of(first, set_of("a", "b", "c", update_domains=2))
    assert named.code is ErrorCode.CONFLICT
    assert named.facts == {"where": "availability_set[0].machines[2]"}
    assert named.message.startswith("at availability_set[0].machines[2]: ")
    unnamed = refusal_of(first, set_of("a", "b", update_domains=2))
    assert unnamed.code is ErrorCode.CONFLICT
    assert unnamed.facts == {"machine": "c"}
    outcome, second = apply(first, set_of("a", "b", update_domains=2), prune=True)
    assert outcome.removed == ("c",)
    assert second.scopes["s"].update_domains == 2


def test_a_machine_of_a_scope_that_the_file_leaves_out_hides_no_collision() -> None:
    _, lone = apply(Snapshot(), read(machine=[{"name": "lone"}]))
    _, first = apply(lone, set_of("a", "b", "c"))
    assert next(iter(first.machines)) == "lone"
    assert refusal_of(first, set_of("a", "b", update_domains=2)).facts == {"machine": "c"}


def test_more_domains_are_taken() -> None:
    _, first = apply(Snapshot(), set_of("a", "b", "c"))
    outcome, second = apply(first, set_of("a", "b", "c", "d", update_domains=4))
    assert [s.update_domains for s in outcome.changes.scopes] == [4]
    assert domains(second)["d"] == 3


def test_machines_are_removed_all_or_none() -> None:
    snapshot = Bench().snapshot
    outcome = fleet_file.remove(snapshot.world(), ["WEB-0", "bastion", "web-0"])
    assert outcome.removed == ("web-0", "bastion")
    assert outcome.changes.removed_machines == ("web-0", "bastion")
    assert outcome.changes.removed_scopes == ("bastion",)
    with pytest.raises(Refused) as refusal:
        fleet_file.remove(snapshot.world(), ["web-0", "zed", "nobody"])
    assert refusal.value.code is ErrorCode.NOT_FOUND
    assert refusal.value.facts == {"what": "machine", "name": "nobody"}


def test_a_lost_machine_is_not_added_again_unless_that_is_said() -> None:
    bench = Bench()
    bench.ask(EventType.PREEMPT, "batch_0")
    bench.let_pass(MINUTE)
    decision = bench.finish("1.1")
    (lost,) = decision.changes.tombstones
    assert (lost.name, lost.event_type, lost.operation, lost.at) == (
        "batch_0",
        EventType.PREEMPT,
        "1.1",
        NOW + MINUTE,
    )
    assert "batch_0" not in bench.snapshot.machines
    outcome, after = apply(bench.snapshot, FLEET)
    assert outcome.lost == ("batch_0",)
    assert (outcome.added, outcome.unchanged, outcome.missing) == ((), 14, ())
    assert "batch_0" not in after.machines
    again = fleet_file.apply(after.world(), FLEET, prune=False, mint=MINT, again=True)
    assert (again.added, again.lost) == (("batch_0",), ())
    assert again.changes.revived == ("batch_0",)
    last, _ = apply(applied(after, again.changes), FLEET)
    assert (last.lost, last.unchanged) == ((), 15)


def test_a_lost_standalone_machine_keeps_its_scope_for_its_number() -> None:
    low = read(machine=[{"name": "spot", "priority": "low"}])
    bench = Bench(low)
    bench.ask(EventType.PREEMPT, "spot")
    bench.let_pass(MINUTE)
    bench.finish("1.1")
    before = bench.scope("spot").incarnation
    again = fleet_file.apply(bench.snapshot.world(), low, prune=False, mint=MINT, again=True)
    assert applied(bench.snapshot, again.changes).scopes["spot"].incarnation == before


def test_a_scope_that_is_added_again_goes_on_above_its_old_number() -> None:
    snapshot = msgspec.structs.replace(Snapshot(), retired={"s": 7})
    _, after = apply(snapshot, set_of("a"))
    assert after.scopes["s"].incarnation == 8
    _, kept = apply(msgspec.structs.replace(after, retired={"s": 20}), set_of("a", "b"))
    assert kept.scopes["s"].incarnation == 8
    _, other = apply(snapshot, read(machine=[{"name": "alone"}]))
    assert other.scopes["alone"].incarnation == 0
