"""The command line. Each command parses its arguments, calls one use case, and prints the result."""

import stream.programs  # noqa: F401 - one BLAS thread, before numpy is imported
