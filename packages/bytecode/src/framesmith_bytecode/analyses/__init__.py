"""What is known of a `Bytecode` without running it: its places, value stack, blocks, variables, and what is wrong."""
