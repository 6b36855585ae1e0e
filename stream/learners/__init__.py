"""The learning algorithms: one file per paper, made by name with `create`."""

from stream.learners.banditron import Banditron
from stream.learners.base import (
    Cost,
    KernelLearner,
    Learner,
    Parameter,
    ParameterError,
    State,
    absent_parameters,
    check_parameters,
    create,
    registered,
)
from stream.learners.confidit import Confidit
from stream.learners.confidit_kernel import ConfiditKernel
from stream.learners.feature_blocks import FeatureBlocks
from stream.learners.full_information import Arow, Perceptron, SecondOrderPerceptron
from stream.learners.kwik_banditron import KwikBanditron
from stream.learners.newtron import Newtron, PNewtron
from stream.learners.one_sided_banditron import OneSidedBanditron
from stream.learners.one_versus_all import OvaKernelPerceptron, OvaPerceptron
from stream.learners.selectron import Selectron
from stream.learners.soba import Soba, SobaAdaptive, SobaDiag
from stream.learners.version_space import BiasedHalving, Exp4, Halving, HypothesisExhaustion

__all__ = [
    "Arow",
    "Banditron",
    "BiasedHalving",
    "Confidit",
    "ConfiditKernel",
    "Cost",
    "Exp4",
    "FeatureBlocks",
    "Halving",
    "HypothesisExhaustion",
    "KernelLearner",
    "KwikBanditron",
    "Learner",
    "Newtron",
    "OneSidedBanditron",
    "OvaKernelPerceptron",
    "OvaPerceptron",
    "PNewtron",
    "Parameter",
    "ParameterError",
    "Perceptron",
    "SecondOrderPerceptron",
    "Selectron",
    "Soba",
    "SobaAdaptive",
    "SobaDiag",
    "State",
    "absent_parameters",
    "check_parameters",
    "create",
    "registered",
]
