"""The hook of telemetry, and what is installed in it."""
