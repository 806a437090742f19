"""From the canonical form to the running CPython's code objects."""
