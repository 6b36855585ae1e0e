"""What all programs share: connections, notices, clocks, health checks and cost estimates."""

import os

# Set before numpy is imported. The number of BLAS threads determines the order of summation, which affects the last
# bits of SOBA's results with the full matrix. Using one thread is also fastest on a machine that runs other programs.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
