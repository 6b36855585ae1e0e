"""Learning algorithms, with one folder per family and one file per paper. `create` creates a learner by name.

Importing this package imports all modules in it and in its folders, and thereby registers their learners.
"""

import importlib
import pkgutil

from stream.learners.base import Cost, FromLogs, KernelLearner, Learner, Parameter, ParameterError, State
from stream.learners.registry import check_parameters, create, registered, sparse_defaults

for _module in pkgutil.walk_packages(__path__, f"{__name__}."):
    importlib.import_module(_module.name)

__all__ = [
    "Cost",
    "FromLogs",
    "KernelLearner",
    "Learner",
    "Parameter",
    "ParameterError",
    "State",
    "check_parameters",
    "create",
    "registered",
    "sparse_defaults",
]
