"""Programs that read topics."""
