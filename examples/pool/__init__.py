"""The pool: a rolling reboot under load, with agents and without.

`make demo-pool` runs it. It uses what Forewarn publishes and nothing else: the command line, the
operators' API, the agent. No file here imports the package.

__main__   the command: all rounds, and the promises that each must keep
round      one round: start everything, reboot the set domain by domain, stop everything
place      the addresses and files of a round, made from the recipe in the folder `recipe`
results    what a round came to, and what must hold
picture    a round as text, and as SVG

These are programs of their own, run by `python -I`:

host       has the machines, and restarts them
backend    the service on a machine
restart    the program of the `command` connector
traffic    the clients of the pool
"""
