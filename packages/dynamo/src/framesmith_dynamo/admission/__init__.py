"""Which frames, at which moments, are taken at all."""
