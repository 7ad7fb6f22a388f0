"""Triton kernels: prepare (input and weights as tiles are read), convolve, finish, merge."""
