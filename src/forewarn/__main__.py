"""The start of `forewarn`, and of `python -m forewarn`: the command line.

Until the command line is there, Ctrl-C ends the process in silence: nothing is imported before.
"""

import signal


def run() -> None:
    """Run the command line of this process, and end the process."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from forewarn.cli import main  # noqa: PLC0415 - it takes a quarter of a second

    main.run()


if __name__ == "__main__":
    run()
