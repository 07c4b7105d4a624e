"""Real servers, each a context manager that starts the server's own binary and ends it by its own pid."""
