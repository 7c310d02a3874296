"""The memory: the data that survives a crash.

    port         Store, Transaction, Reading: the promises that every store keeps
    schema       the tables, and the kinds of values in them
    connections  connections to a database, whatever the engine, and the form of statements
    queries      the questions to a database
    sql          SqlStore: transactions, writing and copying
    sqlite       open_store: SQLite's settings, its errors (a full disk), the creation of a new
                 file; and InMemoryStore, for the emulator and for tests
    postgresql   the same for PostgreSQL, where one replica writes at a time, so that nothing starts
                 twice; and lost answers to COMMIT

Only this room speaks SQL, and it never decides. Used by `control` and, for reading, by `server`.
"""
