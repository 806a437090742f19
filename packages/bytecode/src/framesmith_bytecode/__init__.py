"""Read, edit, verify and assemble CPython code objects; generate code; continuation functions."""
