"""Each store and artifact backend beside SQLite and files, in one run: ``python -m benchmarks.stores``."""
