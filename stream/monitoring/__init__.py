"""The state and the page of the monitor, computed from committed records. Does not depend on Faust or sockets."""
