"""Matrix products of our own as LLVM IR: packing, register tiles, dot products, and the loops and threads around them."""
