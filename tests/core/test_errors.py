"""Every error says by its class whether trying again can help."""

from __future__ import annotations

import inspect

from icewright.core import errors
from icewright.core.errors import ConfigError, IcewrightError, RetryableError, TerminalError, UnknownOutcome

CLASSES = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, IcewrightError)]
CLASS_NAMES = [c.__name__ for c in CLASSES]
LEAVES = [c for c in CLASSES if not c.__subclasses__()]
KINDS = (TerminalError, RetryableError, UnknownOutcome)


def test_each_leaf_is_of_one_kind() -> None:
    """What is raised is terminal, retryable or unknown: exactly one of the three, never the bare base."""
    assert [leaf for leaf in LEAVES if sum(issubclass(leaf, kind) for kind in KINDS) != 1] == []


def test_kinds_are_not_raised_themselves() -> None:
    """Each kind has classes below it, so that a reader learns what happened and not only what to do about it."""
    assert not {*KINDS, IcewrightError} & {*LEAVES}


def test_each_class_says_what_happened() -> None:
    """The class docstring is the sentence that the reference page prints."""
    assert [error for error in CLASSES if not (error.__doc__ or "").strip().endswith(".")] == []


def test_each_class_is_drawn() -> None:
    """The tree at the top of the module names every class of it."""
    assert [name for name in CLASS_NAMES if name not in (errors.__doc__ or "")] == []


def test_lost_reply_is_not_retried() -> None:
    """A commit whose reply was lost is neither failed nor worth a blind retry."""
    assert not issubclass(errors.CommitStateUnknown, RetryableError | TerminalError)


def test_a_conflict_is_planned_again() -> None:
    """A lost race and a lost lease may go better next time; a refusal and a broken invariant may not."""
    assert issubclass(errors.CommitConflict, RetryableError)
    assert issubclass(errors.LeaseLost, RetryableError)
    assert issubclass(errors.Refused, TerminalError)
    assert issubclass(errors.InvariantViolated, TerminalError)


def test_config_error_holds_every_fault() -> None:
    """All faults are kept one by one, and the message shows one a line."""
    error = ConfigError(["a: wrong", "b: wrong too"])
    assert error.faults == ("a: wrong", "b: wrong too")
    assert str(error) == "a: wrong\nb: wrong too"
