"""Cumulative sums, products, extremes and log-sum-exps on the CPU."""
