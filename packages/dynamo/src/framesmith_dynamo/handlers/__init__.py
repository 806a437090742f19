"""Handlers: one file per family of instructions; each handler is a function registered for an opcode."""
