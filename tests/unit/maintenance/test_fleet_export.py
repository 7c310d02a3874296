"""The fleet file of a fleet: to apply it changes nothing."""

import itertools
import tomllib
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from builders import Snapshot
from forewarn.cli.fleet import as_toml
from forewarn.maintenance import fleet_file
from forewarn.maintenance.model import Changes, Queueing
from forewarn.vocabulary import EventType, Priority

SCALE_SETS = ({"priority": "low"}, *({"terminate_notice_minutes": m} for m in (None, 5, 15)))
WORDS = st.text("aZ9é \"'\\#{}", max_size=6)
TYPES = st.sampled_from([(), (EventType.REBOOT,), (EventType.REBOOT, EventType.REDEPLOY)])
ENTRY: dict[str, Any] = {
    "host": st.sampled_from(["", "h1", "h2"]),
    "listener": st.sampled_from([None, "", "east"]),
    "tags": st.dictionaries(WORDS, WORDS, max_size=2),
    "zone": WORDS,
    "azure_environment": st.sampled_from(["AzurePublicCloud", ""]),
    "subnet": st.sampled_from(["", "10.0.0.0/24"]),
    "fault_domain": st.none() | st.integers(0, 2),
}
GROUP: dict[str, Any] = {
    "update_domains": st.integers(1, 20),
    "automatically_approve": TYPES,
    "queue": st.none() | st.sampled_from(Queueing),
    "settle_seconds": st.none() | st.integers(0, 9),
    "listener": st.sampled_from(["", "west"]),
}


@st.composite
def fleets(draw: st.DrawFn) -> fleet_file.Fleet:
    names = (f"{draw(st.sampled_from(['m', 'M.', 'x_1-']))}{n}" for n in itertools.count())
    addresses = (f"10.0.0.{n}" for n in itertools.count(1))

    def entry(kind: type[Any], **more: Any) -> Any:
        fields = {name: draw(values) for name, values in ENTRY.items()}
        address = draw(st.sampled_from(["", next(addresses)]))
        return kind(**fields, address=address, **more)

    def indices() -> list[int]:
        found: list[int] = draw(st.lists(st.integers(0, 120), max_size=4, unique=True))
        return found

    def group() -> dict[str, Any]:
        return {name: draw(values) for name, values in GROUP.items()} | {"name": next(names)}

    def count() -> range:
        return range(draw(st.integers(0, 2)))

    return fleet_file.Fleet(
        availability_set=tuple(
            fleet_file.AvailabilitySet(
                **group(),
                machines=tuple(entry(fleet_file.NamedMachine, name=next(names)) for _ in count()),
            )
            for _ in count()
        ),
        scale_set=tuple(
            fleet_file.ScaleSet(
                **group(),
                **draw(st.sampled_from(SCALE_SETS)),
                machines=tuple(entry(fleet_file.IndexedMachine, index=n) for n in indices()),
            )
            for _ in count()
        ),
        cloud_service=tuple(
            fleet_file.CloudService(
                **group(),
                roles=tuple(
                    fleet_file.Role(
                        name=next(names),
                        instances=tuple(entry(fleet_file.RoleInstance, index=n) for n in indices()),
                    )
                    for _ in count()
                ),
            )
            for _ in count()
        ),
        machine=tuple(
            entry(
                fleet_file.StandaloneMachine,
                name=next(names),
                priority=draw(st.sampled_from((None, *Priority))),
                automatically_approve=draw(TYPES),
            )
            for _ in count()
        ),
    )


def applied(snapshot: Snapshot, wanted: fleet_file.Fleet, *, prune: bool = False) -> Changes:
    numbers = itertools.count(1)
    return fleet_file.apply(
        snapshot.world(),
        wanted,
        prune=prune,
        mint=lambda: f"00000000-0000-4000-8000-{next(numbers):012x}",
        allow_empty=True,
    ).changes


def after(changes: Changes) -> Snapshot:
    return Snapshot(
        scopes={scope.key: scope for scope in changes.scopes},
        machines={machine.key: machine for machine in changes.machines},
    )


@given(fleets())
def test_to_apply_what_was_exported_changes_nothing(wanted: fleet_file.Fleet) -> None:
    there = after(applied(Snapshot(), wanted))
    exported = fleet_file.exported(there.scopes.values(), there.machines.values())
    assert not applied(there, exported)
    assert not applied(there, exported, prune=True)
    as_json = msgspec.json.decode(msgspec.json.encode(exported), type=fleet_file.Fleet)
    assert not applied(there, as_json, prune=True)
    toml = tomllib.loads(as_toml(exported))
    assert msgspec.convert(toml, fleet_file.Fleet) == exported
    # What is exported makes the same fleet elsewhere, too.
    assert after(applied(Snapshot(), exported)) == there


def test_an_instance_behind_a_gap_keeps_its_name() -> None:
    instance = fleet_file.RoleInstance
    role = fleet_file.Role(name="Web", instances=(instance(), instance(index=7), instance(index=1)))
    service = fleet_file.CloudService(name="shop", roles=(role,))
    there = after(applied(Snapshot(), fleet_file.Fleet(cloud_service=(service,))))
    assert sorted(there.machines) == ["web_in_0", "web_in_1", "web_in_7"]
    exported = fleet_file.exported(there.scopes.values(), there.machines.values())
    (role,) = exported.cloud_service[0].roles
    assert [one.index for one in role.instances] == [None, None, 7]
