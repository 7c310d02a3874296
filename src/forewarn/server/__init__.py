"""The service as a process: two planes over one control plane, in one event loop.

    guest     the plane of machines: the metadata endpoint
    operator  the plane of people and their tools: the API
    page      the same for browsers
    relay     the plane of relays on hosts
    relay_feed  the messages between the service and the relays on hosts
    checks          runs the programs that let units of a maintenance go on
    settings  one TOML file, checked whole before anything starts
    sockets   the operators' sockets, and the reasons why an address cannot be listened on
    secret_files  the operators' token and the proxies' secrets
    process   signals, open files, the event loop and the log of such a process
    service   puts the rooms below together, starts and stops them in order
    run       the process around it: signals, exit statuses

Two planes, two sockets, never one. Used by `cli` alone.
"""
