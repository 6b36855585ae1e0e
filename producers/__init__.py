"""Programs that write to the input topics: replay, feedback and the gateway, with their data sets and logs."""
