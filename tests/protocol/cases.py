"""What the golden documents say, as values. The files were typed by hand from docs/protocol.md.

A golden file holds the exact bytes of a body and one newline, which a reader strips.
"""

from datetime import UTC, datetime
from pathlib import Path

from forewarn.protocol.instance import Instance
from forewarn.protocol.versions import EventsDocument, ScheduledEvent
from forewarn.vocabulary import EventSource, EventStatus, EventType, ScopeKind

GOLDEN = Path(__file__).parent / "golden"

FREEZE, REBOOT, REDEPLOY = EventType.FREEZE, EventType.REBOOT, EventType.REDEPLOY
PREEMPT, TERMINATE = EventType.PREEMPT, EventType.TERMINATE
USER, PLATFORM = EventSource.USER, EventSource.PLATFORM

HOST_MAINTENANCE = "Host server is undergoing maintenance."
LIVE_MIGRATION = (
    "Virtual machine is being paused because of a memory-preserving Live Migration operation."
)
FAILURE = "Virtual machine has encountered a failure."


def asked_for(verb: str) -> str:
    return f"Virtual machine is going to be {verb} as requested by authorized user."


def golden(name: str) -> bytes:
    """Return a golden file without its one newline at the end."""
    content = (GOLDEN / name).read_bytes()
    assert content.endswith(b"\n"), name
    return content[:-1]


def scheduled(
    event_id: str,
    event_type: EventType,
    names: str,
    not_before: datetime,
    said: tuple[str, EventSource, int],
) -> ScheduledEvent:
    description, source, duration_seconds = said
    return ScheduledEvent(
        event_id=event_id,
        status=EventStatus.SCHEDULED,
        event_type=event_type,
        resources=tuple(names.split()),
        not_before=not_before,
        description=description,
        source=source,
        duration_seconds=duration_seconds,
    )


def started(
    event_id: str, event_type: EventType, names: str, said: tuple[str, EventSource, int]
) -> ScheduledEvent:
    description, source, duration_seconds = said
    return ScheduledEvent(
        event_id=event_id,
        status=EventStatus.STARTED,
        event_type=event_type,
        resources=tuple(names.split()),
        not_before=None,
        description=description,
        source=source,
        duration_seconds=duration_seconds,
    )


def at(year: int, month: int, day: int, clock: str) -> datetime:
    hour, minute, second = map(int, clock.split(":"))
    return datetime(year, month, day, hour, minute, second, tzinfo=UTC)


SECTION_4_EVENT = scheduled(
    "C1BF8322-4CBF-4FC4-9C45-B40CF3106D0E",
    REBOOT,
    "web-0 web-1",
    at(2016, 9, 19, "18:29:47"),
    (asked_for("restarted"), USER, -1),
)
SECTION_4 = EventsDocument(incarnation=2, events=(SECTION_4_EVENT,))
EMPTY = EventsDocument(incarnation=0)


def a(number: str) -> str:
    return f"A{number}000000-0000-4000-8000-00000000000F"


AVAILABILITY_SET = EventsDocument(
    incarnation=31,
    events=(
        scheduled(
            a("1"), FREEZE, "web-2", at(2022, 3, 1, "07:05:09"), (HOST_MAINTENANCE, PLATFORM, 5)
        ),
        started(a("2"), FREEZE, "web-3", (LIVE_MIGRATION, PLATFORM, 9)),
        SECTION_4_EVENT,
        started(a("4"), REBOOT, "web-5 web-4", (HOST_MAINTENANCE, PLATFORM, 600)),
        scheduled(
            a("5"),
            REDEPLOY,
            "web-4",
            at(2024, 2, 29, "23:59:59"),
            (asked_for("redeployed"), USER, -1),
        ),
        started(a("6"), REDEPLOY, "web-5", (FAILURE, PLATFORM, -1)),
        scheduled(a("7"), PREEMPT, "web-2", at(2022, 12, 31, "00:00:00"), ("", PLATFORM, -1)),
        started(a("8"), PREEMPT, "web-3", ("", PLATFORM, 0)),
        scheduled(
            a("9"), TERMINATE, "web-0", at(2023, 1, 1, "12:00:30"), (asked_for("deleted"), USER, -1)
        ),
        started(
            a("A"), TERMINATE, "web-1", ("Virtual machine is going to be deleted.", PLATFORM, -1)
        ),
    ),
)


def c(number: str) -> str:
    return f"C{number}000000-0000-4000-8000-00000000000F"


CLOUD_SERVICE = EventsDocument(
    incarnation=7,
    cloud_service=True,
    events=(
        scheduled(
            c("1"),
            FREEZE,
            "FrontEnd_IN_0 BackEnd_IN_0",
            at(2019, 4, 10, "09:08:07"),
            (HOST_MAINTENANCE, PLATFORM, 5),
        ),
        started(c("2"), FREEZE, "FrontEnd_IN_1", (LIVE_MIGRATION, PLATFORM, 9)),
        scheduled(
            c("3"),
            REBOOT,
            "BackEnd_IN_10",
            at(2020, 5, 8, "04:15:00"),
            (asked_for("restarted"), USER, -1),
        ),
        started(c("4"), REBOOT, "BackEnd_IN_2", (HOST_MAINTENANCE, PLATFORM, 600)),
        scheduled(
            c("5"),
            REDEPLOY,
            "FrontEnd_IN_2",
            at(2017, 6, 9, "20:10:10"),
            (asked_for("redeployed"), USER, -1),
        ),
        started(c("6"), REDEPLOY, "FrontEnd_IN_3", (FAILURE, PLATFORM, -1)),
        scheduled(c("7"), PREEMPT, "BackEnd_IN_3", at(2021, 7, 4, "16:45:01"), ("", PLATFORM, -1)),
        started(c("8"), PREEMPT, "BackEnd_IN_4", ("", PLATFORM, 0)),
        scheduled(
            c("9"),
            TERMINATE,
            "BackEnd_IN_5",
            at(2027, 8, 2, "10:07:00"),
            (asked_for("deleted"), USER, -1),
        ),
        started(
            c("A"),
            TERMINATE,
            "BackEnd_IN_6",
            ("Virtual machine is going to be deleted.", PLATFORM, -1),
        ),
    ),
)


def s(number: str) -> str:
    return f"5{number}000000-0000-4000-8000-0000000000FF"


SCALE_SET = EventsDocument(
    incarnation=4294967296,
    events=(
        started(s("A"), TERMINATE, "batch_12", ('Größe "klein" / café \\ 2', USER, -1)),
        scheduled(
            s("1"),
            FREEZE,
            "batch_0 batch_1 batch_10",
            at(2026, 10, 20, "21:22:23"),
            (HOST_MAINTENANCE, PLATFORM, 30),
        ),
        started(s("2"), FREEZE, "batch_2", (asked_for("paused"), USER, 0)),
        scheduled(
            s("3"),
            REBOOT,
            "batch_3",
            at(2026, 11, 3, "05:06:07"),
            (asked_for("restarted"), USER, -1),
        ),
        started(s("4"), REBOOT, "batch_4", (HOST_MAINTENANCE, PLATFORM, 86400)),
        scheduled(
            s("5"), REDEPLOY, "batch_5", at(2023, 2, 15, "01:02:03"), (FAILURE, PLATFORM, -1)
        ),
        started(s("6"), REDEPLOY, "batch_6", (asked_for("redeployed"), USER, -1)),
        scheduled(s("7"), PREEMPT, "batch_7", at(2022, 7, 7, "13:13:13"), ("", PLATFORM, -1)),
        started(s("8"), PREEMPT, "batch_8", ("", PLATFORM, -1)),
        scheduled(
            s("9"),
            TERMINATE,
            "batch_9",
            at(2021, 9, 11, "14:00:00"),
            (asked_for("deleted"), USER, -1),
        ),
    ),
)

DOCUMENTS = {
    ScopeKind.CLOUD_SERVICE: CLOUD_SERVICE,
    ScopeKind.AVAILABILITY_SET: AVAILABILITY_SET,
    ScopeKind.SCALE_SET: SCALE_SET,
}

WHOLE_INSTANCE = Instance(
    az_environment="AzurePublicCloud",
    location="west",
    name="web-0",
    os_type="Linux",
    placement_group_id="9b1f",
    platform_fault_domain="1",
    platform_update_domain="2",
    priority="Regular",
    resource_group_name="shop",
    resource_id="/subscriptions/42/web-0",
    subscription_id="42",
    tags=(("role", "leader"), ("tier", "1")),
    vm_id="02aab8a4-74ef-476e-8182-f6d2ba4166a6",
    vm_scale_set_name="web",
    vm_size="Standard_A3",
    zone="3",
    computer_name="leader.example",
    private_ip_address="10.0.0.10",
    public_ip_address="203.0.113.7",
    subnet_address="10.0.0.0",
    subnet_prefix="24",
    ipv6_addresses=("fd00::10",),
    mac_address="000D3A00FA89",
)
BARE_INSTANCE = Instance(name="bastion")
