"""Train one model on many unequal, unreliable workers."""

from importlib.metadata import version

from paceline import trace
from paceline._paceline import Aggregate, Assignment, Question, Setup, Turn, Update
from paceline.analysis import simulate, whatif
from paceline.errors import Error, InputError, RunError
from paceline.results import (
    Columns,
    ComparedScheme,
    RunResults,
    Summary,
    TracedWorker,
    WhatIf,
    WhatIfAnswer,
    WorkerTimes,
    read_run,
)
from paceline.run import Run, join
from paceline.scheme import Scheme

__version__ = version("paceline")
__all__ = [
    "Aggregate",
    "Assignment",
    "Columns",
    "ComparedScheme",
    "Error",
    "InputError",
    "Question",
    "Run",
    "RunError",
    "RunResults",
    "Scheme",
    "Setup",
    "Summary",
    "TracedWorker",
    "Turn",
    "Update",
    "WhatIf",
    "WhatIfAnswer",
    "WorkerTimes",
    "__version__",
    "join",
    "read_run",
    "simulate",
    "trace",
    "whatif",
]
