"""The monitor's state and page, computed from committed records. Does not depend on Faust or sockets."""
