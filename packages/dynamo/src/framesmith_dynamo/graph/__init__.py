"""The FX graph under construction."""
