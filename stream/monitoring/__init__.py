"""The state and the page of the monitor, computed from committed records; independent of Faust and sockets."""
