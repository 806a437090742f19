"""Dynamic shapes, symbolic scalars and unbacked sizes."""
