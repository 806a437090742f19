"""Continuations: functions that resume another at one of its instructions, and splits there."""
