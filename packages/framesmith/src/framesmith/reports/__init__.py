"""Reports to the user: counters, logs, warnings and errors."""
