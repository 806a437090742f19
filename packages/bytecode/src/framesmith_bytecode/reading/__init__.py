"""From code objects to the canonical form."""
