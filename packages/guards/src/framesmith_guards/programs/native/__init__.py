"""The native program: guards as a description for the C of `_native`, and what of torch that C can read here."""
