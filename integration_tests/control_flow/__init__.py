"""Control flow of torch: cond, while_loop, scan, associative_scan, map."""
