"""What carries maintenance out.

    port          Connector, Task, Outcome, Found: what the executor asks and is told
    simulated     touches nothing; a task lasts as long as the settings say
    command       the operator's program, such as that of the guide for Proxmox; its runs are
                  files, with a time limit, and what follows if one fails or its end is unknown
    settings      of both that have any, which load without the server extra
    libvirt       hosts under libvirt: a program of ours, for a machine's task, for surveys and tags
    runner        the program around one run: outlives the service, ends it at its time limit

It knows neither rules nor store: `control.executor` drives it, `server.service` chooses it.
"""
