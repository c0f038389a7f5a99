"""The process that evaluates models, so that no worker straggles for it."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch

from paceline.errors import InputError

if TYPE_CHECKING:
    from paceline._torch.training import Training

#: What a function that evaluates the model returns: its loss, its accuracy, or both.
Evaluation = Mapping[str, float]


class Evaluator:
    """Evaluates models with the user's function. Its process has no data to train on."""

    def __init__(self, function: Callable[[], Evaluation] | None) -> None:
        """Use this function; None if it is set later."""
        self.function = function

    def serve(self, training: "Training") -> None:
        """Evaluate the models that the server sends, until the run is over."""
        assert training.session is not None
        if self.function is None:
            message = "this run asks for evaluations: put @run.evaluate before a function that evaluates the model"
            raise InputError(message)
        while (task := training.session.next_task()) is not None:
            assert task.model is not None
            training.version = task.version
            training.tensors.use(task.model, private=False)
            was_training = training.model.training
            training.model.eval()
            with torch.no_grad():
                loss, accuracy = checked(self.function())
            training.model.train(was_training)
            training.tensors.finish_copies()
            training.session.report_evaluation(loss=loss, accuracy=accuracy)
        training.end()


def checked(found: Evaluation) -> tuple[float | None, float | None]:
    """Return the loss and the accuracy that the user's function has found."""
    if not isinstance(found, Mapping) or not found or not set(found) <= {"loss", "accuracy"}:
        message = f"the function of run.evaluate returned {found!r}: expected a dict with 'loss', 'accuracy' or both"
        raise InputError(message)
    loss, accuracy = (float(found[name]) if name in found else None for name in ("loss", "accuracy"))
    if accuracy is not None and not 0 <= accuracy <= 1:
        message = f"the function of run.evaluate returned the accuracy {accuracy}: expected a share from 0 to 1"
        raise InputError(message)
    return loss, accuracy
