"""The Python API: train a run, look at it, sample its policy, carry it away."""

from ..configuration import RunConfig as RunConfig
from ..configuration import plan as plan
from ..loop.settings import EvalConfig as EvalConfig
from ..loop.settings import RunSettings as RunSettings
from ..training import evaluate as evaluate
from ..training import new_run_folder as new_run_folder
from ..training import trained_model as trained_model
from .run import Run as Run
from .run import Step as Step
from .run import load as load
from .start import Steps as Steps
from .start import resume as resume
from .start import steps as steps
from .start import train as train
from .start import train_async as train_async
