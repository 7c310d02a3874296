"""What applying a fleet changes, and how domains are dealt."""

from typing import Any

import msgspec
import pytest

from builders import FLEET, NOW, Snapshot, applied, mint
from forewarn.maintenance import fleet_file
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


def test_a_machine_takes_its_profile_from_the_file() -> None:
    _, other = apply(Snapshot(), set_of({"name": "a", "location": "westeurope", "zone": "2"}))
    assert other.machines["a"].profile == Profile(location="westeurope", zone="2")


def test_where_a_host_has_machines_in_two_domains_the_stores_order_does_not_decide() -> None:
    given = [{"name": n, "host": "h", "update_domain": d} for n, d in (("a", 2), ("b", 0))]
    _, snapshot = apply(Snapshot(), set_of(*given))
    turned = dict(reversed(snapshot.machines.items()))
    for machines in (snapshot.machines, turned):
        known = msgspec.structs.replace(snapshot, machines=machines)
        _, after = apply(known, set_of({"name": "c", "host": "h"}))
        assert after.machines["c"].update_domain == 2


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


def test_a_scope_does_not_change_its_kind() -> None:
    _, first = apply(Snapshot(), set_of("a"))
    refused = refusal_of(first, read(scale_set=[{"name": "S"}]))
    assert refused.code is ErrorCode.CONFLICT
    assert refused.facts == {"where": "scale_set[0]"}
    assert refused.message.startswith("at scale_set[0]: ")


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


def test_a_scope_that_is_added_again_goes_on_above_its_old_number() -> None:
    snapshot = msgspec.structs.replace(Snapshot(), retired={"s": 7})
    _, after = apply(snapshot, set_of("a"))
    assert after.scopes["s"].incarnation == 8
    _, kept = apply(msgspec.structs.replace(after, retired={"s": 20}), set_of("a", "b"))
    assert kept.scopes["s"].incarnation == 8
    _, other = apply(snapshot, read(machine=[{"name": "alone"}]))
    assert other.scopes["alone"].incarnation == 0


def test_a_group_names_the_listener_of_its_machines_and_a_machine_its_own() -> None:
    names = [{"name": "a"}, {"name": "b", "listener": "green"}, {"name": "c", "listener": ""}]
    _, snapshot = apply(
        Snapshot(),
        read(
            availability_set=[{"name": "s", "listener": "blue", "machines": names}],
            scale_set=[{"name": "b", "listener": "blue", "machines": [{"index": 0}]}],
            cloud_service=[
                {
                    "name": "shop",
                    "listener": "blue",
                    "roles": [{"name": "F", "instances": [{}, {"listener": "green"}]}],
                }
            ],
            machine=[{"name": "lone", "listener": "green"}, {"name": "plain"}],
        ),
    )
    assert {key: machine.listener for key, machine in snapshot.machines.items()} == {
        "a": "blue",
        "b": "green",
        "c": "",
        "b_0": "blue",
        "f_in_0": "blue",
        "f_in_1": "green",
        "lone": "green",
        "plain": "",
    }
