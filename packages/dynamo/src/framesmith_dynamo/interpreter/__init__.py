"""The symbolic interpreter: frames, the loop, one handler for each instruction."""
