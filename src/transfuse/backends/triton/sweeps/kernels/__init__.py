"""What runs on the GPU: Triton compiles these."""
