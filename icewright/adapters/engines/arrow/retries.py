"""How often Arrow asks S3 again, which PyIceberg takes as the name of a class."""

from pyarrow.fs import AwsDefaultS3RetryStrategy

_ATTEMPTS = 9  # as often as the service asks: a store that answers SlowDown means a few seconds


class Patient(AwsDefaultS3RetryStrategy):  # type: ignore[misc]  # PyArrow has no types
    """Ask up to nine times, at growing intervals; Arrow's own three are over within a tenth of a second."""

    def __init__(self) -> None:
        super().__init__(_ATTEMPTS)
