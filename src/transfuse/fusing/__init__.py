"""Models: their transposed convolutions found, with what stands around them, and fused."""
