"""The learning algorithms: one file per paper, made by name with `create`.

Every module of this package is imported here, which registers its learners: a new one is one file.
"""

import importlib
import pkgutil

from stream.learners.base import Cost, FromLogs, KernelLearner, Learner, Parameter, ParameterError, State
from stream.learners.registry import check_parameters, create, registered

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
]
