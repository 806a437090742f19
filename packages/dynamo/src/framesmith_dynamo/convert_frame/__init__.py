"""The frame callback: from a frame about to run to a compiled entry, or a reason to run it eagerly."""
