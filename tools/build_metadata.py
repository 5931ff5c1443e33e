"""Metadata that depends on the project's address: the description and the links on PyPI.

hatchling runs this file when it builds. The functions are in tools/pypi_readme.py.
"""

import runpy
from pathlib import Path
from typing import Any, Final

from hatchling.metadata.plugin.interface import MetadataHookInterface

CONSTANTS: Final = "src/lifesign/domain/common/project.py"
FUNCTIONS: Final = "tools/pypi_readme.py"


class ProjectMetadata(MetadataHookInterface):  # type: ignore[misc, unused-ignore]
    """Sets `readme` and `urls`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set both; hatchling calls this."""
        root = Path(self.root)
        # Nothing of the project is installed while it is built.
        url = runpy.run_path(str(root / CONSTANTS))["PROJECT_URL"]
        functions = runpy.run_path(str(root / FUNCTIONS))
        text = (root / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": functions["pypi_readme"](text, url)}
        metadata["urls"] = functions["project_urls"](url)
