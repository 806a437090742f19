"""Calls, writes and steps that are taken out of traced graphs: the repeated, the dead, those that change nothing."""
