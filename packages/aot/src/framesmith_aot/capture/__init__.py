"""Python functions and modules as torch-level graphs, and compiled functions of any arguments made of them."""
