"""What is taken out of traced graphs: repeated and dead calls, writes and steps that change nothing."""
