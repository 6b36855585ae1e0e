"""The contents of the topics: events, records, encodings, names, and the ledger."""
