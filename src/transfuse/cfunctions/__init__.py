"""The C functions, written ahead of time from the operators' declarations."""
