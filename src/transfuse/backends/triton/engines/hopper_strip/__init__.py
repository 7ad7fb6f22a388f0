"""Hopper: one strip of input rows in shared memory feeds every width tap."""
