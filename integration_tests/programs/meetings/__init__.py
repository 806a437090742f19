"""Programs in which features meet: each of them alone is traced, together they have more ways to go wrong."""
