"""Models with their transposed convolutions fused: captured, matched, rewritten."""
