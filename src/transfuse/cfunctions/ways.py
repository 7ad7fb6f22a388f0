"""The ways that code may go where it asks about numbers that only a call will know."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transfuse.symbols import answering


@dataclass(frozen=True)
class Branch:
    """A question in C++, and what comes of either answer: a result, or another question."""

    question: str
    yes: Any
    no: Any


class _Asked(Exception):
    """A question that has no answer yet."""


def ways(run: Callable[[], Any]) -> Any:
    """What ``run`` gives, or the questions on which that depends: it is run for each answer."""
    return _explored(run, {})


def _explored(run: Callable[[], Any], answers: dict[str, bool]) -> Any:
    def answer(question: str) -> bool:
        if question not in answers:
            raise _Asked(question)
        return answers[question]

    try:
        with answering(answer):
            return run()
    except _Asked as asked:
        question = str(asked)
    yes, no = (_explored(run, {**answers, question: each}) for each in (True, False))
    return Branch(question, yes, no)


def picked(found: Any, pick: Callable[[Any], Any]) -> Any:
    """A part of every result; questions that make no difference to it are left out."""
    if not isinstance(found, Branch):
        return pick(found)
    yes, no = picked(found.yes, pick), picked(found.no, pick)
    return yes if yes == no else Branch(found.question, yes, no)


def cases(found: Any, usual: Any = None) -> list[tuple[str, Any]]:
    """Every result once, after the condition in C++ under which it is the one.

    The last has none, since it is what is left: ``usual``, if that is among them.
    """
    results = sorted(dict.fromkeys(_results(found)), key=lambda each: bool(each == usual))
    return [(_condition(found, each), each) for each in results[:-1]] + [("", results[-1])]


def _results(found: Any) -> list[Any]:
    if not isinstance(found, Branch):
        return [found]
    return _results(found.yes) + _results(found.no)


def _condition(found: Any, result: Any) -> str:
    """When ``result`` comes of it, in C++."""
    if not isinstance(found, Branch):
        return "true" if found == result else "false"
    asked, other = found.question, _other(found.question)
    match _condition(found.yes, result), _condition(found.no, result):
        case "true", "false":
            return asked
        case "false", "true":
            return other
        case yes, "false":
            return f"{asked} && {_apart(yes, ' || ')}"
        case "false", no:
            return f"{other} && {_apart(no, ' || ')}"
        case "true", no:
            return f"{asked} || {_apart(no, ' && ')}"
        case yes, "true":
            return f"{other} || {_apart(yes, ' && ')}"
        case yes, no:
            return f"({asked} ? {yes} : {no})"
    raise AssertionError("a condition is text")


def _other(question: str) -> str:
    if question.endswith(" != 0"):
        return question.replace(" != 0", " == 0")
    return f"!{question}" if question.isidentifier() else f"!({question})"


def _apart(condition: str, sign: str) -> str:
    """A condition in brackets where it has a sign that binds otherwise."""
    return f"({condition})" if sign in condition else condition
