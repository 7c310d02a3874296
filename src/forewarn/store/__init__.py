"""The memory: what survives a crash.

    port        Store, Transaction, Reading: the promises that every store keeps
    tables      the schema
    rows        values to rows and back
    sql         the promises kept with SQLAlchemy Core; SQLite today
    migrations  how the schema came to be

Only this room speaks SQL. It knows the rules' values and never decides anything. Used by
`control` and, for reading, by `server`.
"""
