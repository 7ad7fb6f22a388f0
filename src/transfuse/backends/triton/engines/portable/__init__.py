"""The engine for every GPU: tiles of rows, boxes or samples, in plain Triton."""
