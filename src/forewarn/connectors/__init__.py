"""What carries maintenance out.

    port          Connector, Task, Outcome, Found: what the executor asks and is told
    simulated     touches nothing; a task lasts as long as the settings say
    command       the operator's program, once a machine or once an operation
    settings      of both that have any, which load without the server extra
    libvirt       hosts under libvirt: a program of ours, once a machine
    task_process  one program's run as files: begun, alive, result
    libvirt_domains  the program that reads libvirt's domains and writes their tags
    runner        the program around one run, which outlives the service; imports nothing of ours

A connector does what it is told and reports; it knows neither the rules nor the store. Driven by
`control.executor`, chosen by `server.service` from the settings.
"""
