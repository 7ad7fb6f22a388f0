"""The engine for kernels that strides divide: one matrix product, and a store that shuffles."""
