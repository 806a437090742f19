"""The code that runs in place of the frame."""
