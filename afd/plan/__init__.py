"""The planner: what to run, what it will give, and when not to disaggregate."""
