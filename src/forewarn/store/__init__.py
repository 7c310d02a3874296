"""The memory: what survives a crash.

    port        Store, Transaction, Reading: the promises that every store keeps
    sql         the promises kept with SQLAlchemy Core: open_sqlite, in_memory
    reading     what can be asked
    writing     what can be changed
    history     pages of history and their cursors
    line        one connection in one transaction, and what becomes of its errors
    rows        values to rows and back
    tables      the schema as it is
    schema      its revision, and the way there from an older one
    migrations  the steps of that way
    sqlite      SQLite alone: its settings, its errors, what is looked at before it may write
    creation    a new database, made whole or not at all

Only this room speaks SQL. It knows the rules' values and never decides anything. Used by
`control` and, for reading, by `server`.
"""
