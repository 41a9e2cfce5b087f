"""Contents of the wheel beside the library, which pyproject.toml tells: the app, in `tracer/website`.

Streamlit puts the folder of `app.py` on the path of the process that serves it, so `pages` is imported there by its own
name, and `site-packages` gets no package of that name.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

PAGES = sorted(path for path in Path("pages").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
APP = [str(path) for path in (Path("app.py"), Path(".streamlit/config.toml"), *PAGES)]


class WithApp(build_py):
    """Builds the library, and copies the app into it."""

    def run(self) -> None:
        super().run()
        for name in [] if self.editable_mode else APP:
            target = Path(self.build_lib, "tracer", "website", name)
            self.mkpath(str(target.parent))
            self.copy_file(name, str(target))

    def get_source_files(self) -> list[str]:
        return [*super().get_source_files(), *APP]


setup(cmdclass={"build_py": WithApp})
