"""The loop IR: expressions, programs, kernels; its rules (`verify`) and its meaning (`spec`)."""
