"""Templates: where they are found, and how strictly they are filled in."""

from pathlib import Path
from typing import Any


def environment() -> Any:
    try:
        import jinja2
    except ModuleNotFoundError as error:
        raise RuntimeError("jinja2 is not installed; pip install 'transfuse[report]'") from error
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
