"""Announced reboots that really happen: prepared for, approved, and undone once after them."""

import pytest

from machines.site import STATUS, Site, command

pytestmark = pytest.mark.timeout(1800)

RULES = f"""
[[rule]]
name    = "reboots"
match   = {{ types = ["Reboot"] }}
prepare = [
  {{ ready = {{ wait_seconds = 0 }} }},
  {{ service = {{ stop = "web.service" }} }},
  {command("kept")},
  {command("wanted", after_boot="again")},
  {command("forgotten", after_boot="forget")},
]
approve = "when-prepared"
"""


@pytest.mark.parametrize("how", ["systemctl", "cut"])
def test_what_a_reboot_was_prepared_by_is_undone_once_after_it(site: Site, how: str) -> None:
    machine = site.machine
    before, logged = machine.inside.boot, len(site.done())
    machine.run("systemctl", "start", "web")
    site.announce("Reboot", how)
    after = machine.inside.booted()
    assert after != before
    assert site.operation()["status"] == "Started", site.operation()

    machine.until(f"grep -q 'wanted ends {after}' /var/log/actions.log")
    assert site.operation()["status"] == "Started"
    assert machine.inside.run("sh", "-c", f"{STATUS}/readyz").returncode != 0, "still taken out"
    assert machine.inside.run("systemctl", "is-active", "web").stdout == "inactive\n"
    site.end()

    done = [("kept", before), ("wanted", before), ("forgotten", before), ("wanted", after)]
    undone = [("un-wanted", after), ("un-kept", after)]
    assert site.done()[logged:] == [
        f"{name} {word} {boot}" for name, boot in done + undone for word in ("begins", "ends")
    ]
    assert machine.run("sh", "-c", f"{STATUS}/readyz") == "ready\n"
    assert machine.run("systemctl", "is-active", "web") == "active\n"
    assert site.operation()["start_cause"] == "approved"
