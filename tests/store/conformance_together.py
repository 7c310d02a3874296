"""What every store must keep, with others and for good: `port.py` as tests. See `conformance`."""

import signal
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

import forked
import patience
from forewarn.maintenance.model import Changes, HoldKind
from forewarn.store.port import Position
from forewarn.store.sql import Store, Transaction
from store.conformance import assert_rolled_back
from store.engines import Engine
from store.story import new_change, relay, save, webhook
from store.values import (
    BATCH,
    NOW,
    WEB,
    drain,
    hold,
    machine,
    operation,
    tombstone,
    with_maintenances,
)


class Together:
    """All or nothing, one after the other, and kept."""

    def test_a_transaction_that_raises_leaves_nothing(self, store: Store) -> None:
        save(store, Changes(scopes=(WEB,)))
        whole = msgspec.structs.replace(
            with_maintenances(operation("1.1")),
            scopes=(BATCH, msgspec.structs.replace(WEB, incarnation=5)),
            machines=(machine("a"),),
            holds=(hold(HoldKind.EVERYTHING),),
            tombstones=(tombstone("b"),),
            drains=(drain("h1"),),
        )

        store.hear([relay()])

        def change(transaction: Transaction) -> None:
            transaction.save(whole)
            transaction.put_setting("a", "b")
            transaction.put_webhooks([webhook("a")])
            transaction.mark_relay("h1", NOW)
            transaction.append(new_change("a"), b"[1]")
            assert set(transaction.scopes()) == {"web", "batch"}
            assert transaction.next_maintenance_number() == 2
            transaction.forget_relay("h1")

        assert_rolled_back(store, change)
        with store.read() as reading:
            assert reading.scopes() == {"web": WEB}
            assert reading.machines() == reading.live_operations() == reading.tombstones() == {}
            assert reading.holds() == ()
            assert reading.drains() == reading.webhooks() == {}
            assert reading.setting("a") is None
            assert reading.relays() == {"h1": relay()}
            assert reading.news_after(0, 10) == []
            assert reading.position() == Position()
        with store.write() as transaction:
            assert transaction.next_maintenance_number() == 1
            assert transaction.append(new_change("b")) == Position(1, "b")

    def test_increments_of_many_threads_are_all_counted(self, store: Store) -> None:
        save(store, Changes(scopes=(WEB, BATCH)))

        def increment(_: int) -> None:
            with store.write() as transaction:
                scopes = transaction.scopes().values()
                more = (msgspec.structs.replace(s, incarnation=s.incarnation + 1) for s in scopes)
                transaction.save(Changes(scopes=tuple(more)))

        with ThreadPoolExecutor(16) as threads:
            assert len(list(threads.map(increment, range(160)))) == 160
        with store.read() as reading:
            assert {s.incarnation for s in reading.scopes().values()} == {160}

    def test_readers_never_see_half_of_a_transaction(self, store: Store) -> None:
        save(store, Changes(scopes=(WEB, BATCH)))
        stop = threading.Event()
        torn: list[tuple[int, int, int]] = []

        def watch() -> int:
            looks = 0
            while not stop.is_set():
                with store.read() as reading:
                    web = reading.scopes()["web"].incarnation
                    batch = reading.scopes()["batch"].incarnation
                    change = reading.position().sequence
                looks += 1
                if not web == batch == change:
                    torn.append((web, batch, change))
            return looks

        with ThreadPoolExecutor(4) as threads:
            watching = [threads.submit(watch) for _ in range(4)]
            for number in range(1, 60):
                both = (msgspec.structs.replace(s, incarnation=number) for s in (WEB, BATCH))
                with store.write() as transaction:
                    for scope in both:
                        transaction.save(Changes(scopes=(scope,)))
                    transaction.append(new_change(f"t{number}"))
            stop.set()
            assert sum(w.result() for w in watching) > 0
        assert torn == []

    def test_a_view_is_of_the_instant_at_which_it_was_opened(self, store: Store) -> None:
        save(store, Changes(scopes=(WEB,)))
        begun = threading.Event()

        def write() -> None:
            begun.set()
            save(store, Changes(scopes=(msgspec.structs.replace(WEB, incarnation=1),)))

        writer = threading.Thread(target=write)
        with store.read() as reading:
            writer.start()
            assert begun.wait(patience.SECONDS)
            writer.join(patience.SECONDS)
            assert reading.scopes() == {"web": WEB}
        writer.join()
        with store.read() as reading:
            assert reading.scopes()["web"].incarnation == 1

    def test_any_thread_may_close_the_store(self, engine: Engine, tmp_path: Path) -> None:
        opened = engine.open(tmp_path)
        closing = threading.Thread(target=opened.close)
        closing.start()
        closing.join()
        again = engine.open(tmp_path)
        with again.read() as reading:
            assert reading.scopes() == {}
        again.close()

    def test_what_was_committed_is_there_when_it_is_opened_again(
        self, engine: Engine, tmp_path: Path
    ) -> None:
        whole = msgspec.structs.replace(
            with_maintenances(operation("1.1")),
            scopes=(WEB,),
            machines=(machine("a"),),
            holds=(hold(HoldKind.HOST, "h1"),),
            tombstones=(tombstone("B"),),
            drains=(drain("h1"),),
        )
        opened = engine.open(tmp_path)
        save(opened, whole)
        opened.close()
        opened = engine.open(tmp_path)
        with opened.read() as reading:
            assert reading.operations(["1.1"]) == {"1.1": whole.operations[0]}
            assert reading.machines() == {"a": whole.machines[0]}
            assert reading.scopes() == {"web": WEB}
            assert reading.holds() == whole.holds
            assert reading.tombstones() == {"b": whole.tombstones[0]}
            assert reading.drains() == {"h1": whole.drains[0]}
        opened.close()

    def test_what_was_committed_survives_the_death_of_the_process(
        self, engine: Engine, tmp_path: Path
    ) -> None:
        told = 0
        engine.open(tmp_path).close()  # a server that it needs is this process's child
        for _ in range(3):
            child = forked.Forked(
                ["-m", "store.committer", engine.name, str(tmp_path)],
                cwd=Path(__file__).parents[1],
                stdout=subprocess.PIPE,
                text=True,
            )
            assert child.stdout is not None
            with child, child.stdout as lines:
                for _ in range(25):
                    told = int(lines.readline())
                child.send_signal(signal.SIGKILL)
                told = max([told, *(int(line) for line in lines if line.endswith("\n"))])
            assert child.returncode == -signal.SIGKILL
            opened = engine.open(tmp_path)
            with opened.read() as reading:
                kept = reading.scopes()["web"].incarnation
                ids = reading.operations([f"1.{n}" for n in range(kept + 2)])
            opened.close()
            assert kept in {told, told + 1}, "one more may have been committed, but not told"
            assert set(ids) == {f"1.{n}" for n in range(1, kept + 1)}
