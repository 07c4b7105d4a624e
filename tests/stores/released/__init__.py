"""A store as each released version of perdure wrote it, and what writes it."""
