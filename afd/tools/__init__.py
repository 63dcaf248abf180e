"""Tools that make checkpoints; nothing here is needed to serve one."""
