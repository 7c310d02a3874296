"""The connectors, which carry maintenance out.

    port          Connector, Task, Outcome, Found: the executor's questions, and the answers
    simulated     touches nothing; a task lasts as long as the settings say
    command       the operator's program, such as that of the guide for Proxmox; its runs are
                  files, with a time limit, and rules for a failure or an unknown end
    settings      of both that have any, which load without the server extra
    libvirt       hosts under libvirt: a program of ours, for a machine's task, for surveys and tags
    runner        the program around one run: outlives the service, ends it at its time limit

It knows neither rules nor store: `control.executor` drives it, `server.service` chooses it.
"""
