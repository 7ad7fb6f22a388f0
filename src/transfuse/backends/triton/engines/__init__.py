"""Engines: ways to run a convolution on a GPU, a room each, behind one contract."""
