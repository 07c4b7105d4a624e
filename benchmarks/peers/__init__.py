"""perdure beside other runtimes that keep each step: ``python -m benchmarks.peers``."""
