"""How fast perdure is on this machine, beside what SQLite itself can do with the same rows."""
