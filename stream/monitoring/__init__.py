"""The monitor's state and page, computed from committed records. This package does not depend on Faust or sockets."""
