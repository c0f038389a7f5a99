"""The package's exceptions. Their texts are the sentences of the command line."""


class Error(Exception):
    """What every exception of this package is."""


class InputError(Error, ValueError):
    """An option or a file can't be used."""


class Interrupted(BaseException):
    """The scheme no longer needs what this worker computes. `with run.step():` handles it."""


class RunError(Error):
    """The input is valid, but the run failed."""
