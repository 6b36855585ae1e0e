"""The contents of the topics: events, records, encodings, topic names, and the ledger."""
