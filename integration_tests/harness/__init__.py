"""Shared by several folders: programs beside eager mode, modes, injected failures, captured launches."""
