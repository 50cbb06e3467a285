"""How a task ends other than well."""


class AirflowException(Exception):
    """Failed; may be tried again."""


class AirflowFailException(AirflowException):
    """Failed; not tried again."""


class AirflowSkipException(AirflowException):
    """Skipped."""
