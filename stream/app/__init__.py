"""The application's use cases. Each one receives resolved settings, returns a report and prints nothing."""

import os

# Set before numpy is imported. The number of BLAS threads determines the order of summation, which affects the last
# bits of SOBA's results with the full matrix. Using one thread is also fastest on a machine that runs other programs.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
