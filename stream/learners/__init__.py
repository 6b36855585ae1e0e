"""The learning algorithms: one file per paper, made by name with `create`."""

from stream.learners.banditron import Banditron
from stream.learners.base import (
    Cost,
    KernelLearner,
    Learner,
    Parameter,
    ParameterError,
    State,
    check_parameters,
    create,
    registered,
)
from stream.learners.full_information import Arow, Perceptron, SecondOrderPerceptron
from stream.learners.newtron import Newtron, PNewtron
from stream.learners.soba import Soba, SobaAdaptive, SobaDiag

__all__ = [
    "Arow",
    "Banditron",
    "Cost",
    "KernelLearner",
    "Learner",
    "Newtron",
    "PNewtron",
    "Parameter",
    "ParameterError",
    "Perceptron",
    "SecondOrderPerceptron",
    "Soba",
    "SobaAdaptive",
    "SobaDiag",
    "State",
    "check_parameters",
    "create",
    "registered",
]
