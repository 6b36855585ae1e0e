"""The replay: its program, which writes contexts, and the loop that runs it on Kafka."""
