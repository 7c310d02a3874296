"""A request becomes operations: who is meant, how they are grouped, what is refused."""

from datetime import datetime, timedelta

import msgspec
import pytest

from builders import MINUTE, NOW, SECOND, Bench, mint
from forewarn.maintenance import fleet_file, planner
from forewarn.maintenance.model import Refused
from forewarn.vocabulary import (
    ApproverKind,
    ErrorCode,
    EventSource,
    EventStatus,
    EventType,
    TargetKind,
)


def refusal_of(bench: Bench, event_type: EventType, *machines: str, **more: object) -> Refused:
    before = bench.snapshot
    with pytest.raises(Refused) as refusal:
        bench.ask(event_type, *machines, **more)
    assert bench.snapshot is before
    return refusal.value


def test_named_machines_of_one_domain_share_an_event_in_the_order_of_their_names() -> None:
    bench = Bench()
    (operation,) = bench.ask(EventType.REBOOT, "web-3", "WEB-0", "web-3").operations
    assert operation.id == "1.1"
    assert bench.event("1.1").machines == ("web-0", "web-3")
    assert bench.event("1.1").update_domain == 0
    assert bench.event("1.1").scope == "web"
    assert operation.status is EventStatus.SCHEDULED
    assert operation.announced_at == NOW
    assert operation.not_before == NOW + 15 * MINUTE


def test_machines_of_several_scopes_get_an_operation_each() -> None:
    bench = Bench()
    decision = bench.ask(EventType.FREEZE, "web-0", "bastion", "batch_2", "batch_0")
    found = {o.id: bench.event(o.id).machines for o in decision.operations}
    assert found == {"1.1": ("bastion",), "1.2": ("batch_0", "batch_2"), "1.3": ("web-0",)}


def test_a_scope_means_all_of_its_machines() -> None:
    bench = Bench()
    decision = bench.ask(EventType.PREEMPT, scope="Batch")
    assert [bench.event(o.id).machines for o in decision.operations] == [
        ("batch_0", "batch_2"),
        ("batch_1", "batch_3"),
    ]
    maintenance = decision.maintenance
    assert maintenance is not None
    assert (maintenance.target, maintenance.targets) == (TargetKind.SCOPE, ("Batch",))
    assert maintenance.number == 1
    assert maintenance.requested_at == NOW


def test_a_maintenance_keeps_what_was_asked() -> None:
    bench = Bench()
    maintenance = bench.ask(
        EventType.REDEPLOY,
        "web-3",
        "web-0",
        source=EventSource.USER,
        duration_seconds=90,
        description="New rack.",
        requested_by="ann",
    ).maintenance
    assert maintenance is not None
    assert (maintenance.target, maintenance.targets) == (TargetKind.MACHINES, ("web-0", "web-3"))
    assert maintenance.event_type is EventType.REDEPLOY
    assert maintenance.source is EventSource.USER
    assert maintenance.duration_seconds == 90
    assert maintenance.description == "New rack."
    assert maintenance.requested_by == "ann"
    operation = bench.operation("1.1")
    assert operation.source is EventSource.USER
    assert operation.description == "New rack."
    assert operation.duration_seconds == 90
    assert operation.maintenance == 1


def test_an_operation_keeps_what_its_connector_needs() -> None:
    bench = Bench()
    bench.ask(EventType.FREEZE, scope="batch", live_migration=True, to_host="h9")
    moved = bench.operation("1.1")
    assert (moved.target, moved.live_migration, moved.to_host) == (TargetKind.SCOPE, True, "h9")
    bench.ask(EventType.REBOOT, host="h0", host_boot_id="before")
    rebooted = bench.operation("2.1")
    assert (rebooted.target, rebooted.host_boot_id) == (TargetKind.HOST, "before")


def test_names_are_ordered_by_their_numbers() -> None:
    names = ["web-10", "web-2", "b1", "web", "web-1a", "10x", "9x"]
    wanted = msgspec.convert(
        {"availability_set": [{"name": "s", "update_domains": 1,
                               "machines": [{"name": n} for n in names]}]},
        fleet_file.Fleet,
    )  # fmt: skip
    bench = Bench(wanted)
    bench.ask(EventType.REBOOT, scope="s")
    assert bench.event("1.1").machines == ("9x", "10x", "b1", "web", "web-1a", "web-2", "web-10")


def test_an_event_id_is_an_upper_case_guid_of_its_own() -> None:
    bench = Bench()
    bench.mint = mint("c")
    bench.ask(EventType.REBOOT, "bastion", "web-1")
    assert bench.event("1.1").id == "CCCCCCCC-0000-4000-8000-000000000001"
    assert bench.event("1.2").id == "CCCCCCCC-0000-4000-8000-000000000002"


@pytest.mark.parametrize(
    ("event_type", "machine", "least"),
    [
        (EventType.FREEZE, "web-0", 15 * MINUTE),
        (EventType.REBOOT, "web-0", 15 * MINUTE),
        (EventType.REDEPLOY, "web-0", 10 * MINUTE),
        (EventType.PREEMPT, "batch_0", 30 * SECOND),
        (EventType.TERMINATE, "firm_0", 10 * MINUTE),
    ],
)
def test_notice_is_the_least_of_the_type(
    event_type: EventType, machine: str, least: timedelta
) -> None:
    bench = Bench()
    bench.ask(event_type, machine)
    assert bench.operation("1.1").not_before == NOW + least


def test_a_notice_counts_from_the_request_and_the_least_is_enough() -> None:
    bench = Bench()
    bench.ask(EventType.REBOOT, "web-0", notice_seconds=15 * 60)
    assert bench.operation("1.1").not_before == NOW + 15 * MINUTE
    bench.ask(EventType.REBOOT, "web-3", notice_seconds=20 * 60)
    assert bench.operation("2.1").not_before == NOW + 20 * MINUTE
    short = refusal_of(bench, EventType.REDEPLOY, "bastion", notice_seconds=10 * 60 - 1)
    assert short.code is ErrorCode.NOTICE_TOO_SHORT
    for more in ({"not_before": NOW + 30 * MINUTE}, {"no_notice": True}):
        twice = refusal_of(bench, EventType.REBOOT, "bastion", notice_seconds=1800, **more)
        assert twice.code is ErrorCode.INVALID


def test_a_later_not_before_is_kept_and_an_earlier_one_refused() -> None:
    bench = Bench()
    bench.ask(EventType.REBOOT, "web-0", not_before=NOW + timedelta(days=2))
    assert bench.operation("1.1").not_before == NOW + timedelta(days=2)
    refused = refusal_of(bench, EventType.REBOOT, "web-1", not_before=NOW + 14 * MINUTE)
    assert refused.code is ErrorCode.NOTICE_TOO_SHORT


@pytest.mark.parametrize(
    ("event_type", "source", "text"),
    [
        ("Freeze", "Platform", "Host server is undergoing maintenance."),
        ("Reboot", "User",
         "Virtual machine is going to be restarted as requested by authorized user."),
        ("Redeploy", "User",
         "Virtual machine is going to be redeployed as requested by authorized user."),
        ("Redeploy", "Platform", "Virtual machine has encountered a failure."),
        ("Preempt", "Platform", ""),
        ("Freeze", "User",
         "Virtual machine is going to be paused as requested by authorized user."),
        ("Reboot", "Platform", "Host server is undergoing maintenance."),
        ("Terminate", "Platform", "Virtual machine is going to be deleted."),
        ("Terminate", "User",
         "Virtual machine is going to be deleted as requested by authorized user."),
        ("Preempt", "User", ""),
    ],
)  # fmt: skip
def test_the_description_is_the_one_that_clients_match_on(
    event_type: str, source: str, text: str
) -> None:
    bench = Bench()
    machine = "firm_0" if event_type == "Terminate" else "batch_0"
    bench.ask(EventType(event_type), machine, source=EventSource(source))
    assert bench.operation("1.1").description == text


def test_every_type_from_every_source_has_a_description() -> None:
    every = {(event_type, source) for event_type in EventType for source in EventSource}
    assert set(planner.DESCRIPTIONS) == every


def test_a_live_migration_says_so_and_only_a_freeze_is_one() -> None:
    bench = Bench()
    bench.ask(EventType.FREEZE, "web-0", live_migration=True)
    assert bench.operation("1.1").description == (
        "Virtual machine is being paused because of a memory-preserving Live Migration operation."
    )
    assert bench.operation("1.1").live_migration
    refused = refusal_of(bench, EventType.REBOOT, "web-1", live_migration=True)
    assert refused.code is ErrorCode.INVALID


def test_an_operation_that_moves_says_where_to_and_no_other_may() -> None:
    bench = Bench()
    bench.ask(EventType.REDEPLOY, "web-0", to_host="h9")
    bench.ask(EventType.FREEZE, "web-3", live_migration=True, to_host="h8")
    assert [bench.operation(f"{n}.1").to_host for n in (1, 2)] == ["h9", "h8"]
    assert refusal_of(bench, EventType.FREEZE, "db", to_host="h9").code is ErrorCode.INVALID


def test_an_empty_description_is_a_description() -> None:
    bench = Bench()
    bench.ask(EventType.REBOOT, "web-0", description="")
    assert bench.operation("1.1").description == ""


def test_a_failure_without_notice_has_started_already() -> None:
    bench = Bench(now=NOW + timedelta(microseconds=1))
    decision = bench.ask(EventType.REDEPLOY, "web-0", no_notice=True)
    operation = bench.operation("1.1")
    assert operation.status is EventStatus.STARTED
    assert operation.started_at == bench.now
    assert operation.start_cause == "no-notice"
    assert operation.not_before == NOW + SECOND
    assert [scope.name for scope in decision.changes.scopes] == ["web"]


@pytest.mark.parametrize(
    ("event_type", "machine", "source"),
    [
        (EventType.PREEMPT, "batch_0", EventSource.PLATFORM),
        (EventType.TERMINATE, "firm_0", EventSource.PLATFORM),
        (EventType.REBOOT, "web-0", EventSource.USER),
    ],
)
def test_only_the_platforms_failures_strike_without_notice(
    event_type: EventType, machine: str, source: EventSource
) -> None:
    refused = refusal_of(Bench(), event_type, machine, source=source, no_notice=True)
    assert refused.code is ErrorCode.NOT_ELIGIBLE
    assert all(each in refused.message for each in planner.NO_NOTICE_TYPES)


def test_a_failure_takes_no_not_before() -> None:
    refused = refusal_of(
        Bench(), EventType.REBOOT, "web-0", no_notice=True, not_before=NOW + 20 * MINUTE
    )
    assert refused.code is ErrorCode.INVALID


def test_a_users_reboot_is_approved_by_the_scopes_own_setting() -> None:
    bench = Bench()
    bench.ask(EventType.REBOOT, "FrontEnd_IN_0", source=EventSource.USER)
    operation = bench.operation("1.1")
    approval = bench.event("1.1").approval
    assert operation.status is EventStatus.STARTED
    assert operation.start_cause == "approved"
    assert operation.not_before == NOW
    assert approval is not None
    assert (approval.kind, approval.by, approval.at) == (ApproverKind.AUTOMATIC, "shop", NOW)


@pytest.mark.parametrize(
    ("event_type", "machine", "source"),
    [
        (EventType.REBOOT, "FrontEnd_IN_0", EventSource.PLATFORM),
        (EventType.REDEPLOY, "FrontEnd_IN_0", EventSource.USER),
        (EventType.REBOOT, "web-0", EventSource.USER),
    ],
)
def test_nothing_else_is_approved_automatically(
    event_type: EventType, machine: str, source: EventSource
) -> None:
    bench = Bench()
    bench.ask(event_type, machine, source=source)
    assert bench.operation("1.1").status is EventStatus.SCHEDULED
    assert bench.event("1.1").approval is None


def test_only_a_low_priority_machine_is_preempted() -> None:
    refused = refusal_of(Bench(), EventType.PREEMPT, "firm_0")
    assert refused.code is ErrorCode.NOT_ELIGIBLE
    assert refused.facts == {"scope": "firm"}


@pytest.mark.parametrize(("machine", "scope"), [("batch_0", "batch"), ("web-0", "web")])
def test_only_a_scale_set_with_notification_terminates(machine: str, scope: str) -> None:
    refused = refusal_of(Bench(), EventType.TERMINATE, machine)
    assert refused.code is ErrorCode.NOT_ELIGIBLE
    assert refused.facts == {"scope": scope}


def test_unknown_names_are_all_named() -> None:
    refused = refusal_of(Bench(), EventType.REBOOT, "nobody", "web-0", "noone")
    assert refused.code is ErrorCode.NOT_FOUND
    assert refused.facts == {"what": "machine", "name": "nobody"}
    six = [f"x{n}" for n in range(6)]
    assert (
        "'x0', 'x1', 'x2', 'x3', 'x4' and 1 more:"
        in refusal_of(Bench(), EventType.REBOOT, *six).message
    )
    many = [f"x{n}" for n in range(8)]
    assert (
        "'x0', 'x1', 'x2', 'x3', 'x4' and 3 more:"
        in refusal_of(Bench(), EventType.REBOOT, *many).message
    )
    five = [f"x{n}" for n in range(5)]
    assert "'x3', 'x4': see" in refusal_of(Bench(), EventType.REBOOT, *five).message
    refused = refusal_of(Bench(), EventType.REBOOT, scope="nowhere")
    assert refused.facts == {"what": "scope", "name": "nowhere"}


def test_either_machines_or_a_scope_is_named() -> None:
    both = refusal_of(Bench(), EventType.REBOOT, "web-0", scope="web")
    neither = refusal_of(Bench(), EventType.REBOOT)
    for refused in (both, neither):
        assert refused.code is ErrorCode.INVALID


def test_a_scope_without_machines_has_nothing_to_maintain() -> None:
    bench = Bench(msgspec.convert({"scale_set": [{"name": "empty"}]}, fleet_file.Fleet))
    refused = refusal_of(bench, EventType.REBOOT, scope="empty")
    assert refused.code is ErrorCode.INVALID
    assert refused.facts == {"scope": "empty"}


@pytest.mark.parametrize("seconds", [-2, 30 * 24 * 3600 + 1])
def test_a_duration_out_of_bounds_is_refused(seconds: int) -> None:
    refused = refusal_of(Bench(), EventType.REBOOT, "web-0", duration_seconds=seconds)
    assert refused.code is ErrorCode.INVALID
    assert refused.facts == {"duration_seconds": seconds}


@pytest.mark.parametrize("seconds", [-1, 0, 30 * 24 * 3600])
def test_a_duration_within_bounds_is_kept(seconds: int) -> None:
    bench = Bench()
    bench.ask(EventType.REBOOT, "web-0", duration_seconds=seconds)
    assert bench.operation("1.1").duration_seconds == seconds


@pytest.mark.parametrize("text", ["x" * 501, "two\nlines", "\x00"])
def test_a_description_is_one_printable_line(text: str) -> None:
    refused = refusal_of(Bench(), EventType.REBOOT, "web-0", description=text)
    assert refused.code is ErrorCode.INVALID
    assert refused.facts == {"length": len(text)}


def test_a_description_of_500_characters_is_taken() -> None:
    bench = Bench()
    bench.ask(EventType.REBOOT, "web-0", description="x" * 500)
    assert len(bench.operation("1.1").description) == 500


def test_a_time_without_a_zone_is_refused() -> None:
    refused = refusal_of(Bench(), EventType.REBOOT, "web-0", not_before=datetime(2026, 3, 3))
    assert refused.code is ErrorCode.INVALID


def test_ten_thousand_machines_are_the_most_of_one_request() -> None:
    def bench_of(count: int) -> Bench:
        members = [{"name": f"m{n}"} for n in range(count)]
        group = {"name": "big", "update_domains": 1, "machines": members}
        return Bench(msgspec.convert({"availability_set": [group]}, fleet_file.Fleet))

    assert len(bench_of(10_000).ask(EventType.FREEZE, scope="big").operations) == 1
    refused = refusal_of(bench_of(10_001), EventType.FREEZE, scope="big")
    assert refused.code is ErrorCode.LIMIT
    assert refused.facts == {"machines": 10_001, "most": 10_000}
