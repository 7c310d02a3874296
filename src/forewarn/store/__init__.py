"""The memory: the data that survives a crash.

    port         the values that a store takes and returns, and its errors
    schema       the tables, and the kinds of values in them
    connections  connections to a database, whatever the engine, and the form of statements
    queries      Reading: the questions to a database
    sql          Store, Transaction: writing and copying
    sqlite       open_store: SQLite's settings, its errors (a full disk), the creation of a new
                 file; and InMemoryStore, for the emulator and for tests
    postgresql   the same for PostgreSQL, where one replica writes at a time, so that nothing starts
                 twice; and lost answers to COMMIT

Only this room speaks SQL, and it never decides. Used by `control` and, for reading, by `server`.
"""
