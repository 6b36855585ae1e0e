"""Programs that write to topics."""
