"""Repairing a rewired checkpoint, and training small decoders from scratch."""
