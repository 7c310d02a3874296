"""A primary and a standby of PostgreSQL, where one after another is lost and made again."""

from typing import Final

from kills.processes import let_pass
from patience import until
from postgres import OWNER, Postgres
from tcp_proxy import TcpProxy

DATABASE: Final = "forewarn"
STANDBY: Final = "b"


class Pair:
    """Two servers on two ports that stay theirs: `url` names both.

    Args:
        synchronous: Whether the primary answers a commit when the standby has it, too.
    """

    def __init__(self, *, synchronous: bool) -> None:
        self._synchronous = synchronous
        self.primary = Postgres().start()
        self.primary.sql(f"CREATE DATABASE {DATABASE}")
        self._proxy: TcpProxy | None = None
        self.standby: Postgres | None = None
        self._ports = [self.primary.port]
        self.add_standby()
        places = ",".join(f"127.0.0.1:{port}" for port in self._ports)
        self.url = f"postgresql://{OWNER}@{places}/{DATABASE}"

    def __enter__(self) -> "Pair":
        return self

    def __exit__(self, *_: object) -> None:
        for server in filter(None, (self.primary, self.standby)):
            server.remove()
        if self._proxy is not None:
            self._proxy.close()

    def lose_primary(self, after: float = 0.0) -> None:
        """Kill the primary, and promote the standby a while after."""
        assert self.standby is not None
        lost, self.primary, self.standby = self.primary, self.standby, None
        lost.remove()
        let_pass(after)
        self.primary.promote()

    def add_standby(self) -> None:
        """Copy the primary to a standby, and return when that follows it."""
        assert self.standby is None
        if self._proxy is not None:
            self._proxy.close()
        self._proxy = TcpProxy(self.primary.port)
        free = [port for port in self._ports if port != self.primary.port]
        self.standby = self.primary.standby(
            STANDBY, port=self._proxy.port, listen=next(iter(free), 0)
        )
        self.standby.start()
        if not free:
            self._ports.append(self.standby.port)
        if self._synchronous:
            self.primary.reload(f"synchronous_standby_names = '{STANDBY}'")
        wanted = "sync" if self._synchronous else "async"
        state = "SELECT sync_state FROM pg_stat_replication"
        until(lambda: self.primary.sql(state) == wanted, self.standby.log)

    def hold_back_standby(self) -> None:
        """Keep what is committed from now on from the standby."""
        assert self._proxy is not None
        self._proxy.stall()

    def let_standby_follow(self) -> None:
        """Give the standby what was kept from it, and all from now on."""
        assert self._proxy is not None
        self._proxy.heal()

    def wait_until_standby_has_all(self) -> None:
        """Return when the standby has what was committed so far."""
        at = self.primary.sql("SELECT pg_current_wal_lsn()")
        caught_up = (
            f"SELECT coalesce(bool_and(flush_lsn >= '{at}'), false) FROM pg_stat_replication"
        )
        until(lambda: self.primary.sql(caught_up) == "t")
