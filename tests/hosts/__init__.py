"""Real hosts and guests without root: two libvirtds, guests of QEMU, a relay on each host.

The service is beside them; guests ask the relay of their own host, at 169.254.169.254 port 80.

`make prove AREA=hosts` runs it (ARGS="tests/hosts/lab.txt -x"), and nothing else does. pytest
runs each file in namespaces of its own (`__main__`, `namespace`), with which all ends that a test
leaves running; two run at once, or HOSTS_AT_ONCE.

    lab       The network, the hosts h1 and h2, the service, the fleet, the command line.
    host      A host with its relay: virsh against it, its power, its libvirtd, its cable, and
              its boot id.
    system_host Hosts whose libvirtd is root's, one of them reached by SSH alone: AREA=hosts-root.
    site        What a test of root has to itself: /etc, and the user of the service's unit.
    guest     A guest: where it runs, and all of its polls, by which a test judges.
    story     The verbs of the stories, such as lab.txt and faults.txt.
    init.sh   The only program of the guests.
    agent_image  A disk with the agent itself, for a guest that runs it.
    reaper    The first process of a namespace, which reaps.

- A text of stories, or a file of tests, has one lab: share guests, and leave them as the next story
  expects them. A boot takes 4 s on a quiet machine, a live move 1 to 3 s. A test about the service
  alone makes a lab without relays, and says why (`labs.made(..., has_relays=False)`).
- A guest that is moved by hand is known at its new host once fleet sync has seen it: `sync = true`.
- A limit is for a machine ten times slower; what is compared are guests with each other.
- Only `guest.polls` say what a guest lived through: each has the time (`time.monotonic()`), the
  boot's id, and the document or the error. A guest that the fleet does not have reads errors.
- `host.link("down")` cuts the cable over which a host migrates and its relay asks; virsh still
  reaches it. `host.reboot_command` is what a connector would run by ssh.
- Heavy work of several people on one machine goes one after another, by `flock`.
"""
