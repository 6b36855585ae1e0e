"""Settings: definitions, value types, sources, and the settings of a task."""
