"""Compiled kernels, kept in files: what each is named by, how it is written, where it lies."""
