"""The learner: its program, which decides and learns, and the loop that runs it on Kafka."""
