"""Few output channels: one program sums all phases of them, without tensor cores or copies."""
