"""Hypothesis for every test: no example is judged by its clock, which a busy machine slows."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# The profile in force stays the parent, so that what Hypothesis chooses under CI stays chosen.
settings.register_profile(
    "untimed",
    settings.get_profile(settings.get_current_profile_name()),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("untimed")
