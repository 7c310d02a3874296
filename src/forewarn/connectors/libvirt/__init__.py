"""Virtual machines under libvirt: the connector, and the one program that talks to libvirt.

In the service:

    connector     runs the program as `command` does; surveys the hosts, reboots them
    surveys       keeps the program open for each host, and asks for the states of its domains

In the program, a process of its own (`python -I __main__.py`), perhaps of another Python: these
import the standard library, each other, and the library `libvirt`, and nothing else of ours.

    facts         the program's orders and sights: values
    decide        from the sight of a machine to the next step; pure
    hypervisor    the connections to the hosts: their facts, their domains, and the steps
    domains       domains for the fleet: lists, states, tags
    program       look, decide, do, until it is over

So the service never loads the C library, and a call that hangs is killed with its process.
"""
