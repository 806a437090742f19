"""Rewrites of the FX graph before it is lowered: operators to the provider that is fastest here."""
