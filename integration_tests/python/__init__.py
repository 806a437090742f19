"""Python programs: the language, frames and breaks, modes and threads, against eager."""
