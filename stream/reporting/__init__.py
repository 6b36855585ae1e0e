"""How a run went: figures, tables, and one page."""
