"""The pool: a rolling reboot under load, with agents and without, and what the client saw of it.

command    `forewarn demo-pool`: the rounds one after the other, and what must have come of them
rolling    one round: everything started, the set rebooted domain by domain, everything ended
world      a round's processes, and what is seen of them
place      a round's files and addresses, made of the recipe in the folder `recipe`
results    what a round came to, and what must hold of it
picture    a round drawn: as text, and as SVG
display    how a round is shown while it is played
host       the program that has the machines, and restarts them; as backend, restart and traffic it
           imports nothing of Forewarn
backend    the program that is the service on a machine
restart    the program of the `command` connector
traffic    the program that is the pool's client
"""
