"""One graph through the compiler: ahead-of-time autograd, a backend, verification against eager mode."""
