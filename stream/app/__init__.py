"""The application's use cases. Each one receives resolved settings and returns a report; none of them prints."""

import os

# Set before numpy is imported. The number of BLAS threads determines the order of summation, which affects the last
# bits of SOBA's results with the full matrix. One thread is also the fastest on a machine that runs other programs.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
