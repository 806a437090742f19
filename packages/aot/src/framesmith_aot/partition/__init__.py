"""The joint graph split into a forward and a backward graph."""
