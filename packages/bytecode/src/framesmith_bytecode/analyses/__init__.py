"""Static analyses of a `Bytecode`: label indices, value stack, basic blocks, variables, and the verifier."""
