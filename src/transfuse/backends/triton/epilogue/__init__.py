"""The epilogue, shared by all engines: tile ops, statistics, and the store of what is left."""
