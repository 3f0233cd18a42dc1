"""Rows on disk become numbers, pictures and pages; nothing here loads JAX."""
