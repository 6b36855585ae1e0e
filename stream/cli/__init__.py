"""The command line: it parses, calls one use case of `stream.app`, and prints."""

import stream.app  # noqa: F401 - one BLAS thread, before numpy is imported
