"""Presets (model x topology) and hardware profiles: data files, read as package resources."""
