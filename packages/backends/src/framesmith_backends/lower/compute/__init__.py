"""Rules for operators that compute: elementwise, reductions, norms, losses, scans."""
