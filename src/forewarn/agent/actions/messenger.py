"""The process that sends one message by apprise: run as a module, told by its standard input."""

import sys

import msgspec


def main() -> int:
    """Send it; return 0 if every address has taken it."""
    import apprise  # noqa: PLC0415 - an extra, and 30 MB that only this process is to carry

    told = msgspec.json.decode(sys.stdin.buffer.read())
    messenger = apprise.Apprise()
    for number, address in enumerate(told["addresses"], 1):
        if not messenger.add(address):
            sys.stdout.write(f"apprise does not know the address in line {number}")
            return 1
    if not len(messenger):
        sys.stdout.write("there is no address")
        return 1
    sent = messenger.notify(title=told["title"], body=told["body"])
    return 0 if sent else 1


if __name__ == "__main__":
    sys.exit(main())
