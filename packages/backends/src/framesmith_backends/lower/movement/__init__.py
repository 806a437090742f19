"""Rules for operators that move elements: views, copies, padding, indexing, pooling."""
