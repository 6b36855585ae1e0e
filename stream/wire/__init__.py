"""What stands in the topics: events, records, bytes, names, and the ledger that accounts for them."""
