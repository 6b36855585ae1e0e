"""Run reports: figures, tables, and HTML pages."""
