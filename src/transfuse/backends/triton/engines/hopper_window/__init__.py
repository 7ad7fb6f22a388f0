"""Hopper, for a window after the convolution: its members in pairs, results in registers."""
