"""What ``--help`` looks like: a flag stands alone, a value has a name, ``[]`` may be left out.

typer prints the Python type beside every option and argument, ``<bool>`` beside a flag, and braces
around an argument that must be given.
"""

import re
from typing import Any

from typer.core import TyperArgument, TyperCommand, TyperGroup


def _untyped(param: Any) -> Any:
    if isinstance(param, TyperArgument):
        param.display_type_rich = lambda ctx: None  # type: ignore[method-assign]
    elif param.is_flag:
        param.metavar = ""
    return param


class Command(TyperCommand):
    """A command without types in its help."""

    def get_params(self, ctx: Any) -> list[Any]:
        return [_untyped(each) for each in super().get_params(ctx)]

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [re.sub(r"[{}]", "", each) for each in super().collect_usage_pieces(ctx)]


class Commands(TyperGroup):
    """All commands, likewise."""

    def get_params(self, ctx: Any) -> list[Any]:
        return [_untyped(each) for each in super().get_params(ctx)]
