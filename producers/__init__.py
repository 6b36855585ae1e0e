"""Programs that write to the input topics."""
