"""What tests share: running a program beside eager mode, modes, injected failures, captured launches."""
