"""Programs of other libraries; needs the `peers` and `vision` dependency groups."""
