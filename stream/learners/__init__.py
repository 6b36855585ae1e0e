"""Learning algorithms, with one file per paper. `create` creates a learner by name.

Importing this package imports all of its modules, and thereby registers their learners.
"""

import importlib
import pkgutil

from stream.learners.base import Cost, FromLogs, KernelLearner, Learner, Parameter, ParameterError, State
from stream.learners.registry import check_parameters, create, registered, sparse_defaults

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

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
