"""Admission policy: the frames that are compiled, and the states of torch in which none is."""
