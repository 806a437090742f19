"""Generation of canonical instructions."""
