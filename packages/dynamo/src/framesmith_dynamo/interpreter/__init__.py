"""The symbolic interpreter: frames, the loop, and a handler for each instruction."""
