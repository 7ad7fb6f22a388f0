"""``python -m transfuse.cfunctions``: write the C functions of the named operators anew."""

from transfuse.cfunctions.files import SOURCES, write
from transfuse.operators import OPERATORS

write(OPERATORS.values(), SOURCES)
