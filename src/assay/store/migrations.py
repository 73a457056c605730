"""Schema of the index, as numbered steps; an older index runs those that it lacks."""

from __future__ import annotations

import sqlite3

# A step that was published is never changed: what changes is one more step at the end.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    # 1: the runs.
    (
        "CREATE TABLE runs (folder, id, kind, tag, status, created_ns, seconds, started_ns, "
        "attempts, step, reason,"
        " best_metric, best_mode, best_value, best_step, project, parent, config_hash, "
        "seedless_hash, sealed, error,"
        " summaries_json, values_json, lease_json, edits_json, folder_mtime_ns, edits_size, "
        "metrics_mtime_ns,"
        " PRIMARY KEY (folder)) WITHOUT ROWID",
    ),
    # 2: what can be asked for. The time 0 lets every folder that is known already be read again.
    (
        "CREATE TABLE metrics (name, folder, last, min, max, mean, count, PRIMARY KEY (name, "
        "folder)) WITHOUT ROWID",
        "CREATE INDEX metrics_of_run ON metrics (folder)",
        # kind: config, result, label, note or desc; name: the dotted key, the name, the label, or
        # nothing.
        "CREATE TABLE items (kind, name, folder, value, PRIMARY KEY (kind, name, folder)) WITHOUT "
        "ROWID",
        "CREATE INDEX items_of_run ON items (folder)",
        "CREATE TABLE texts (folder, text, readme_mtime_ns, PRIMARY KEY (folder)) WITHOUT ROWID",
        "UPDATE runs SET folder_mtime_ns = 0",
    ),
    # 3: the sweep of a run, and its point.
    (
        "ALTER TABLE runs ADD COLUMN sweep DEFAULT ''",
        "ALTER TABLE runs ADD COLUMN point DEFAULT ''",
        "UPDATE runs SET folder_mtime_ns = 0",
    ),
    # 4: an index of every item by its run took as long to write as the items.
    (
        "DROP INDEX items_of_run",
        "CREATE INDEX labels_of_run ON items (folder, name) WHERE kind = 'label'",
    ),
    # 5: a nan is a value, and a setting of none is none.
    ("UPDATE runs SET folder_mtime_ns = 0",),
)
SCHEMA = len(MIGRATIONS)
"""The newest schema, kept in the file as its `user_version`."""


class NewerIndexError(Exception):
    """The index was made by a newer assay: it is neither read nor written."""


def version_of(database: sqlite3.Connection) -> int:
    """Return the schema version of a database, 0 without one; NewerIndexError for a future one."""
    found = int(database.execute("PRAGMA user_version").fetchone()[0])
    if found > SCHEMA:
        raise NewerIndexError(f"schema {found}; this assay knows {SCHEMA}")
    return found


def migrate(database: sqlite3.Connection) -> None:
    """Bring a database to the newest schema, inside the transaction that is open."""
    found = version_of(database)
    for step in MIGRATIONS[found:]:
        for statement in step:
            database.execute(statement)
    if found != SCHEMA:
        database.execute(f"PRAGMA user_version = {SCHEMA}")
