"""The memory: what survives a crash.

    port        Store, Transaction, Reading: the promises that every store keeps
    tables      the schema, and which struct each table holds
    mapping     structs to rows and back, by the types of the columns
    queries     what can be asked of a database
    sql         SqlStore: connections, transactions and writing, whatever the database
    sqlite      open_store: SQLite's settings, its errors, and how a new file is made
    postgresql  the same for PostgreSQL, which replicas share; and lost answers to COMMIT
    transfer    copy: everything from one database to another
    migrations  the steps from an older schema
    memory      MemoryStore: the same promises over dictionaries

Only this room speaks SQL. It knows the rules' values and never decides anything. Used by
`control` and, for reading, by `server`.
"""
