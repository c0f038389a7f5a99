"""The package's exceptions. Their texts are the sentences of the command line."""


class Error(Exception):
    """What every exception of this package is."""


class InputError(Error, ValueError):
    """An option or a file can't be used."""


class RunError(Error):
    """The input is valid, but the run failed."""
