"""Whether a call's operands and numbers are ones that a graph may hold, and that the real kernel accepts."""
