"""The control plane: a pure scheduler, its messages and the coordinator process. Needs no torch."""
