"""Programs of operators with more to them than a result: random numbers, errors, effects."""
