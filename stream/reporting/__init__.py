"""Reports of runs: figures, tables, and HTML pages."""
