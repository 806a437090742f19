"""A journal of mutations seen while tracing, and their replay as bytecode."""
