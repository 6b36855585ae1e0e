"""Use cases. Each use case receives resolved settings and returns a report. No use case prints."""

import os

# Set before numpy is imported. The number of BLAS threads determines the order of summation, and therefore the last
# bits of the results of SOBA with the full matrix. One thread is also the fastest if the machine runs other programs.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
