"""The service as a process: two planes over one control plane, in one event loop.

    guest     what machines reach: the metadata endpoint
    operator  what people and their tools reach: the API
    settings  one TOML file, checked whole before anything starts
    binding   why an address cannot be listened on, in words, for both planes
    secret_files  secrets in files of their own
    logs      what the service says, and in which form
    service   puts the rooms below together, starts and stops them in order
    run       the process around it: signals, exit statuses

Two planes, two sockets, never one. Used by `cli` alone.
"""
