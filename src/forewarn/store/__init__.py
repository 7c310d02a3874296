"""The memory: what survives a crash.

    port        Store, Transaction, Reading: the promises that every store keeps
    tables      the schema: which struct each table holds, and how a value becomes a row
    queries     what can be asked of a database
    sql         SqlStore: connections, transactions, writing and copying, whatever the database
    sqlite      open_store: SQLite's settings, its errors (a full disk), and how a new file is made
    postgresql  the same for PostgreSQL, where one replica writes at a time, so that nothing starts
                twice; and lost answers to COMMIT
    migrations  makes the tables, and brings an older schema to this release's
    memory      MemoryStore: the same promises over dictionaries

Only this room speaks SQL, and it never decides. Used by `control` and, for reading, by `server`.
"""
