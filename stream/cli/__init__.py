"""The command line. Each command parses its arguments, calls one use case of `stream.app`, and prints the result."""

import stream.app  # noqa: F401 - one BLAS thread, before numpy is imported
