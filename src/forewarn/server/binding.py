"""Why an address of this machine cannot be listened on, and what to do about it."""

import errno


def obstacle(error: OSError, host: str, port: int) -> str:
    """Return what is in the way, for the operator.

    Args:
        error: What the system said when the address was to be bound.
        host: An IP address.
        port: A port of it.
    """
    match error.errno:
        case errno.EADDRINUSE:
            return (
                "the address is in use: stop what listens there "
                f"('ss -ltnp sport = :{port}' shows it), or give another port"
            )
        case errno.EADDRNOTAVAIL:
            return (
                "no interface of this machine has the address: add it "
                f"('ip address add {host} dev INTERFACE'), or give another"
            )
        case errno.EACCES | errno.EPERM:
            return (
                "this port needs a privilege: give the service CAP_NET_BIND_SERVICE, or a port "
                "from 1024 on"
            )
        case errno.EAFNOSUPPORT:
            return "this machine does not speak that family of addresses: give another"
        case _:
            return error.strerror or str(error)
