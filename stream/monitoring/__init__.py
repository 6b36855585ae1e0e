"""What the monitor knows of a pipeline, from committed records alone, and what its page says: no Faust, no sockets."""
