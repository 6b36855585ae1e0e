"""Programs that write input topics."""
