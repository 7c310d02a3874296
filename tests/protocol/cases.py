"""What the golden documents say, as values. The files were typed by hand from docs/protocol.md.

A golden file holds the exact bytes of a body and one newline, which a reader strips.
"""

from datetime import datetime
from pathlib import Path

from forewarn.protocol.instance import Instance
from forewarn.protocol.versions import EventsDocument, ScheduledEvent
from forewarn.vocabulary import EventSource, EventStatus, EventType, ScopeKind

GOLDEN = Path(__file__).parent / "golden"


def asked_for(verb: str) -> str:
    return f"Virtual machine is going to be {verb} as requested by authorized user."


DESCRIPTIONS = {
    "maintenance": "Host server is undergoing maintenance.",
    "migration": (
        "Virtual machine is being paused because of a memory-preserving Live Migration operation."
    ),
    "failure": "Virtual machine has encountered a failure.",
    "deletion": "Virtual machine is going to be deleted.",
    "odd": 'Größe "klein" / café \\ 2',
    "-": "",
    **{verb: asked_for(verb) for verb in ("restarted", "redeployed", "paused", "deleted")},
}


def golden(name: str) -> bytes:
    """Return a golden file without its one newline at the end."""
    content = (GOLDEN / name).read_bytes()
    assert content.endswith(b"\n"), name
    return content[:-1]


def events(rows: str, numbered: str) -> tuple[ScheduledEvent, ...]:
    """Read an event a line; one without a NotBefore has started."""
    read = []
    for row in rows.strip().splitlines():
        number, event_type, names, at, told, source, seconds = row.split()
        read.append(
            ScheduledEvent(
                event_id=numbered.format(number) if len(number) == 2 else number,
                status=EventStatus.STARTED if at == "-" else EventStatus.SCHEDULED,
                event_type=EventType(event_type),
                resources=tuple(names.split(",")),
                not_before=None if at == "-" else datetime.fromisoformat(f"{at}+00:00"),
                description=DESCRIPTIONS[told],
                source=EventSource(source),
                duration_seconds=int(seconds),
            )
        )
    return tuple(read)


RESTART = (
    "C1BF8322-4CBF-4FC4-9C45-B40CF3106D0E Reboot web-0,web-1 2016-09-19T18:29:47 restarted User -1"
)
SECTION_4 = EventsDocument(incarnation=2, events=events(RESTART, ""))
(SECTION_4_EVENT,) = SECTION_4.events
EMPTY = EventsDocument(incarnation=0)

AVAILABILITY_SET = EventsDocument(
    incarnation=31,
    events=events(
        f"""
        A1 Freeze web-2 2022-03-01T07:05:09 maintenance Platform 5
        A2 Freeze web-3 - migration Platform 9
        {RESTART}
        A4 Reboot web-5,web-4 - maintenance Platform 600
        A5 Redeploy web-4 2024-02-29T23:59:59 redeployed User -1
        A6 Redeploy web-5 - failure Platform -1
        A7 Preempt web-2 2022-12-31T00:00:00 - Platform -1
        A8 Preempt web-3 - - Platform 0
        A9 Terminate web-0 2023-01-01T12:00:30 deleted User -1
        AA Terminate web-1 - deletion Platform -1
        """,
        "{}000000-0000-4000-8000-00000000000F",
    ),
)
CLOUD_SERVICE = EventsDocument(
    incarnation=7,
    cloud_service=True,
    events=events(
        """
        C1 Freeze FrontEnd_IN_0,BackEnd_IN_0 2019-04-10T09:08:07 maintenance Platform 5
        C2 Freeze FrontEnd_IN_1 - migration Platform 9
        C3 Reboot BackEnd_IN_10 2020-05-08T04:15:00 restarted User -1
        C4 Reboot BackEnd_IN_2 - maintenance Platform 600
        C5 Redeploy FrontEnd_IN_2 2017-06-09T20:10:10 redeployed User -1
        C6 Redeploy FrontEnd_IN_3 - failure Platform -1
        C7 Preempt BackEnd_IN_3 2021-07-04T16:45:01 - Platform -1
        C8 Preempt BackEnd_IN_4 - - Platform 0
        C9 Terminate BackEnd_IN_5 2027-08-02T10:07:00 deleted User -1
        CA Terminate BackEnd_IN_6 - deletion Platform -1
        """,
        "{}000000-0000-4000-8000-00000000000F",
    ),
)
SCALE_SET = EventsDocument(
    incarnation=4294967296,
    events=events(
        """
        5A Terminate batch_12 - odd User -1
        51 Freeze batch_0,batch_1,batch_10 2026-10-20T21:22:23 maintenance Platform 30
        52 Freeze batch_2 - paused User 0
        53 Reboot batch_3 2026-11-03T05:06:07 restarted User -1
        54 Reboot batch_4 - maintenance Platform 86400
        55 Redeploy batch_5 2023-02-15T01:02:03 failure Platform -1
        56 Redeploy batch_6 - redeployed User -1
        57 Preempt batch_7 2022-07-07T13:13:13 - Platform -1
        58 Preempt batch_8 - - Platform -1
        59 Terminate batch_9 2021-09-11T14:00:00 deleted User -1
        """,
        "{}000000-0000-4000-8000-0000000000FF",
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
