"""Topic contents: events, records, encodings, topic names, and the ledger."""
