"""Packing: input and weights copied into the order in which tiles read them."""
