"""What the kernels of a device show about the inside of actions."""
