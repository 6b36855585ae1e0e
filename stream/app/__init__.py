"""Use cases: each receives resolved settings, runs, and returns a report. Nothing here prints."""

import os

# This must precede the import of numpy. The number of BLAS threads determines the order of summation, and therefore the
# last bits of full SOBA's results. One thread is also the fastest if the machine runs the other programs, too.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
