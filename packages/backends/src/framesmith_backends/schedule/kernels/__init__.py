"""Groups of definitions as loop nests."""
