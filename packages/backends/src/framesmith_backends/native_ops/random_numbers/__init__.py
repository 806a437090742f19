"""Random numbers of the CPU's Mersenne Twister, drawn a vector at a time."""
