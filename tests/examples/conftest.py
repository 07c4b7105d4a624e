"""The examples are imported from the folder they lie in; they are no part of the installed package."""

import sys
from pathlib import Path

# At the end: the folders beside examples must not stand before what is installed.
sys.path.append(str(Path(__file__).parents[2]))
