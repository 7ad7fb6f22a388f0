"""Measuring: cases, peers, clocks, ceilings, and the file of results."""
