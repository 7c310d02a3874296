"""Real hosts and guests without root: two libvirtds, guests of QEMU, a relay on each host.

The service is beside them; guests ask the relay of their own host, at 169.254.169.254 port 80.

`make prove AREA=hosts` runs it (ARGS="tests/hosts/test_lab.py -x"), and nothing else does. pytest
runs each file in namespaces of its own (`__main__`, `namespace`), with which all ends that a test
leaves running; two run at once, or HOSTS_AT_ONCE.

    lab       The network, the hosts h1 and h2, the service, the fleet, the command line.
    host      A host with its relay: virsh against it, its power, its libvirtd, its cable, and
              its boot id.
    system_host Hosts whose libvirtd is root's, one of them reached by SSH alone: AREA=hosts-root.
    site        What a test of root has to itself: /etc, and the user of the service's unit.
    guest     A guest: where it runs, and all of its polls, by which a test judges.
    story     The verbs of the stories: event_types.txt, faults.txt, fleet.txt, drain.txt.
    init.sh   The only program of the guests.
    agent_image  A disk with the agent itself, for a guest that runs it.
    reaper    The first process of a namespace, which reaps.

How a test is written:

    @pytest.fixture(scope="module")
    def guests(lab: Lab) -> list[Guest]:
        lab.serve(lab.libvirt())                        # or any settings from [connector] on
        made = lab.start({"web-0": "h1", "web-1": "h2"}, approve=True)
        lab.fleet(made)                                 # one availability set, a domain each
        return made

    def test_no_poll_is_refused_in_a_freeze_that_moves(lab: Lab, guests: list[Guest]) -> None:
        start = time.monotonic()
        lab.forewarn("schedule", "freeze", "web-0", "--live-migration")
        (operation,) = lab.ended()
        assert operation["status"] == "Completed", operation
        guests[0].wait_for_polls(2)
        assert guests[0].host() == "h2"
        assert len(guests[0].boots) == 1                # it was never restarted
        assert not guests[0].refused_polls(start)

- `lab` is one for the whole file. A file about the service alone makes one without relays, and
  says why (`labs.made(..., has_relays=False)`): there guests reach the service itself.
- A guest that is moved by hand is known at its new host once fleet sync has seen it: `sync = true`.
- A boot takes 4 s on a quiet machine, a live move 1 to 3 s: share guests within a file, and leave
  them as the next test expects them. All files together have three minutes.
- `until` of `host` looks ten times a second: a look is a process or a request.
- A limit is for a machine ten times slower; what is compared are guests with each other.
- Guests take words: `approve=True`, `button=False` (ignores its power button), `memory_mib=`,
  `devices=` (XML). `lab.guest("web-0")` makes one that no host knows yet; `define`, `start`.
- Faults: `host.daemon()` and `host.qemu("web-0")` are process ids, to be killed or stopped;
  `host.start_daemon()`, `host.link("down")` (its cable, over which it migrates; virsh still reaches
  it), `host.power_off()`, `host.power_on()`, `host.reboot()`. `host.reboot_command` is what a
  connector would run by ssh, `host.boot_id_command` prints what changes with each boot.
- Only `guest.polls` say what a guest lived through: each has the time (`time.monotonic()`), the
  boot's id, and the document or the error. A guest that the fleet does not have reads errors.
- Heavy work of several people on one machine goes one after another, by `flock`.
"""
