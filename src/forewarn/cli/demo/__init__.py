"""`forewarn demo`: a fleet, its guests, and maintenance from notice to history.

    show    the command: starts the service and the guests, shows what happens, stops them
    story   the fleet, what happens to it, and what must come of it
    guest   the program in each machine; it imports nothing of Forewarn

Used by `cli.main` alone. It uses the operators' API and the metadata endpoint, as anybody can.
"""
