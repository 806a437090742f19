"""Immutable objects: constants, strings, symbolic numbers, descriptors."""
