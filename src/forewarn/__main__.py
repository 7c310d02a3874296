"""`python -m forewarn` is the command line."""

from forewarn.cli import main

main.run()
