"""Programs in which several features interact: each of them alone is traced."""
