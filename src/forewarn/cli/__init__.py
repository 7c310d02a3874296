"""What people type: one file per command group, and the only place that wires rooms together.

Heavy imports stay inside the commands that need them, so that `forewarn --help` is quick.
"""
