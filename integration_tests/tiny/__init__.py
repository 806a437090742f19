"""One test of each main idea, end to end: all of them in ten seconds."""
