"""The use cases: settings are resolved once, a use case runs, and a report comes back. Nothing here prints."""

import os

# Before numpy is imported: the order in which BLAS adds up depends on its number of threads, and with it the last bits
# of full SOBA. One thread is also the fastest on a machine that runs the other programs too.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
