"""Side effects on containers and objects around graphs, breaks and errors."""
