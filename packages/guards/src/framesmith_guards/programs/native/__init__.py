"""The native program: guards as a description for the C of `_native`, and the parts of torch that C can read."""
