"""Use cases: each receives resolved settings, runs, and returns a report. Nothing here prints."""

import os

# Must precede the import of numpy. The summation order of BLAS, and with it the last bits of full SOBA, depends on its
# number of threads. One thread is also the fastest on a machine that runs the other programs too.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
