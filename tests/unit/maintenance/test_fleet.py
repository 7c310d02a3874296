"""The fleet file, beside the stories of its rules: its limits, and what is exported of it."""

import itertools
import tomllib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import Snapshot, mint
from forewarn.cli.fleet import as_toml
from forewarn.maintenance import fleet_file
from forewarn.maintenance.model import Changes, Queueing, Refused, key
from forewarn.vocabulary import ErrorCode, EventType, Priority

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


def applied(
    there: Snapshot, wanted: fleet_file.Fleet, prefix: str = "0", *, prune: bool = False
) -> Changes:
    ids = mint(prefix)
    return fleet_file.apply(there.world(), wanted, prune=prune, mint=ids, allow_empty=True).changes


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


# Limits.


def read(**tables: Any) -> fleet_file.Fleet:
    return msgspec.convert(tables, fleet_file.Fleet)


def test_a_machine_has_50_tags_at_most_and_none_with_a_control_character() -> None:
    many = [{f"t{n}": "v" for n in range(count)} for count in (50, 51)]
    fleet_file.flatten(read(machine=[{"name": "a", "tags": many[0]}]))
    for tags, code in (
        (many[1], ErrorCode.LIMIT),
        ({"a\x00": "b"}, ErrorCode.INVALID),
        ({"a": "b\t"}, ErrorCode.INVALID),
    ):
        with pytest.raises(Refused) as refused:
            fleet_file.flatten(read(machine=[{"name": "a", "tags": tags}]))
        assert (refused.value.code, refused.value.facts) == (code, {"where": "machine[0]"})
        assert refused.value.message.startswith("at machine[0]")


def test_what_no_story_can_write_is_refused_with_its_path() -> None:
    for tables, told in (
        ({"availability_sett": []}, "unknown field `availability_sett`"),
        ({"machine": [{"name": 3}]}, "Expected `str`, got `int` - at `$.machine[0].name`"),
    ):
        with pytest.raises(msgspec.ValidationError) as error:
            read(**tables)
        assert told in str(error.value)


def test_more_than_200_000_machines_are_refused_before_any_is_looked_at() -> None:
    """They are all wrong: their one name is no name."""
    wrong = fleet_file.StandaloneMachine(name="_")
    empty = fleet_file.AvailabilitySet(name="_")
    for count, code in ((200_000, ErrorCode.INVALID), (200_001, ErrorCode.LIMIT)):
        for fleet in ({"machine": (wrong,) * count}, {"availability_set": (empty,) * count}):
            with pytest.raises(Refused) as refused:
                fleet_file.flatten(fleet_file.Fleet(**fleet))
            assert refused.value.code is code


def test_only_ascii_letters_have_cases_in_names() -> None:
    assert key("Work-0") == "work-0"
    assert key("wor\N{KELVIN SIGN}-0") == "wor\N{KELVIN SIGN}-0"
    assert key("\N{LATIN CAPITAL LETTER A WITH DIAERESIS}B") == (
        "\N{LATIN CAPITAL LETTER A WITH DIAERESIS}b"
    )


def test_machines_with_the_same_profile_share_it() -> None:
    group, other = fleet_file.flatten(read(machine=[{"name": n, "zone": "2"} for n in "ab"]))
    first, second = (fleet_file.profile_of(each.members[0].entry) for each in (group, other))
    assert first is second


def test_where_a_host_has_machines_in_two_domains_the_stores_order_does_not_decide() -> None:
    def set_of(*machines: dict[str, Any]) -> fleet_file.Fleet:
        return read(availability_set=[{"name": "s", "update_domains": 3, "machines": machines}])

    given = [{"name": n, "host": "h", "update_domain": d} for n, d in (("a", 2), ("b", 0))]
    there = after(applied(Snapshot(), set_of(*given)))
    for machines in (there.machines, dict(reversed(there.machines.items()))):
        known = msgspec.structs.replace(there, machines=machines)
        (dealt,) = applied(known, set_of({"name": "c", "host": "h"}), "d").machines
        assert dealt.update_domain == 2
