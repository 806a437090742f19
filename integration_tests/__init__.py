"""Tests that cross packages: the whole of `framesmith.compile()` against eager."""
