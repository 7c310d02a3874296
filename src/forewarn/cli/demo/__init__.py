"""The demonstration: the real service, guests as processes of their own, a story of a minute.

command    `forewarn demo`
ground     the folder of its own, and what signals do
show       starts everything, plays the story, ends everything
cast       the fleet, the guests' roles, the service's settings
story      the acts, and what must have come of them
stage      what is: asked of the service, heard from the guests
display    a table that is repainted, or lines in a pipe
processes  the service and the guests as processes
guest      the program inside a machine; run by itself, it imports nothing of Forewarn
"""
