"""Timing of candidates side by side, in this process and in others, and what rows come to."""
