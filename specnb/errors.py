"""The one error of the package."""


class SpecnbError(ValueError):
    """Bad input or an impossible request; the message says what came, what is expected and what to do."""
