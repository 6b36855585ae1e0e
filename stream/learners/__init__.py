"""The learning algorithms: one file per paper, made by name with `create`."""

from stream.learners.base import Cost, Learner, Parameter, ParameterError, State, check_parameters, create, registered

__all__ = [
    "Cost",
    "Learner",
    "Parameter",
    "ParameterError",
    "State",
    "check_parameters",
    "create",
    "registered",
]
