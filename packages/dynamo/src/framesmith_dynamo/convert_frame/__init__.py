"""From a frame about to run to the answer the hook gets."""
