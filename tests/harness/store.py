"""The kit's way to a store, with faults."""

from perdure.runtime._testing_store import FaultyStore, carrying, every

__all__ = ["FaultyStore", "carrying", "every"]
