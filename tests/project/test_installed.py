"""App from an installed package: a wheel holds its pages, and no package of theirs lies beside the library."""

import asyncio
import json
import socket
import subprocess
import sys
import sysconfig
import urllib.request
import venv
from pathlib import Path

import pytest
from streamlit import config

import tracer
from pages.server.app_factory import BACKEND_SCRIPT
from tests.load.visitor import Answer, Visitor
from tests.support.serving import ROOT, App
from tracer import cli
from tracer.cli.commands import app


@pytest.fixture(scope="module")
def installed_programs(tmp_path_factory) -> Path:
    """Folder of the programs of a fresh environment, with the wheel of this tree and the packages that are here."""
    folder = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    alone = ["--no-deps", "--no-index"]
    # what lies in the folder build/ would be packed too: of a file that is gone since, for instance
    copied = "app.py pages tracer .streamlit pyproject.toml setup.py README.md LICENSE".split()
    (tree := folder / "tree").mkdir()
    for name in copied:
        (tree / name).symlink_to(ROOT / name)
    subprocess.run([*pip, "wheel", *alone, "--no-build-isolation", "-w", folder, tree], check=True, timeout=300)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "env", symlinks=True)
    (place,) = (folder / "env").glob("lib/*/site-packages")
    (place / "here.pth").write_text(sysconfig.get_path("purelib"))
    python = folder / "env" / "bin" / "python"
    subprocess.run([*pip, "--python", python, "install", *alone, wheel], check=True, timeout=300)
    assert {path.name for path in place.iterdir()} >= {"tracer"} and not (place / "pages").exists()
    return python.parent


@pytest.mark.sweep
def test_the_app_starts_from_the_package(installed_programs, tmp_path):
    server = App(tmp_path / "log", root=tmp_path, HOME=str(tmp_path))
    server.command = [installed_programs / "tracer", "app", "--port", str(server.port)]
    with server:
        with urllib.request.urlopen(f"{server.address}/attention", timeout=60) as answer:
            assert BACKEND_SCRIPT in answer.read().decode()
        visitor = Visitor(server.address)

        async def visit() -> Answer:
            answer = await visitor.open("attention?model=nanogpt")
            await visitor.close()
            return answer

        assert asyncio.run(visit()).problems == []
        assert visitor.all("heading")[0].body == "What does a token attend to?"
    assert f"Tensor tracer: {server.address}" in server.log() and "Traceback" not in server.log()


@pytest.mark.sweep
def test_the_package_says_its_version(installed_programs):
    said = subprocess.run(
        [installed_programs / "python", "-c", "import tracer; print(tracer.__version__, tracer.__file__)"],
        capture_output=True,
        text=True,
        check=True,
        cwd=installed_programs,
    )
    version, file = said.stdout.split()
    assert version == tracer.__version__ and Path(file).is_relative_to(installed_programs.parent)


@pytest.mark.sweep
def test_the_package_tells_registries_and_type_checkers_about_itself(installed_programs):
    program = (
        "import json, tracer; from importlib import metadata, resources;"
        "typed = resources.files(tracer).joinpath('py.typed').is_file();"
        "print(json.dumps([metadata.metadata('tensor-tracer').json, typed]))"
    )
    command = [installed_programs / "python", "-c", program]
    told, typed = json.loads(subprocess.run(command, capture_output=True, check=True, cwd=installed_programs).stdout)
    assert typed and "Typing :: Typed" in told["classifier"]
    assert told["description"] == (ROOT / "README.md").read_text(encoding="utf-8")
    assert told["description_content_type"] == "text/markdown"
    assert told["author"] and told["keywords"] and "app" in told["provides_extra"]


@pytest.mark.parametrize("given", ["0", "65536", "08501", "x", "²"])
def test_a_port_that_is_none_is_refused(given, capsys):
    assert cli.main(["app", "--port", given]) == 2
    assert f"'{given}' is not a port, expected a number from 1 to 65535" in capsys.readouterr().err


def test_a_port_that_is_taken_is_refused(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert cli.main(["app", "--port", port]) == 2
    assert f"can't listen at '127.0.0.1:{port}'" in capsys.readouterr().err


def test_settings_reach_streamlit_by_its_environment_variables(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text('[server]\nmaxUploadSize = 7\n[theme.light.sidebar]\nbackgroundColor = "#fff"\n')
    assert app.settings(file, ["--logger.level=debug", "--server.maxUploadSize=8"]) == {
        "STREAMLIT_SERVER_MAX_UPLOAD_SIZE": "8",
        "STREAMLIT_THEME_LIGHT_SIDEBAR_BACKGROUND_COLOR": "#fff",
        "STREAMLIT_LOGGER_LEVEL": "debug",
    }
    assert app.settings(tmp_path / "none.toml", []) == {}
    options = config.get_config_options()
    for option in ("server.maxUploadSize", "theme.light.sidebar.backgroundColor", "server.sslCertFile"):
        assert app.variable(option) == options[option].env_var


def test_an_option_that_is_none_is_refused(capsys):
    assert cli.main(["app", "--", "--loud"]) == 2
    said = capsys.readouterr().err
    assert "'--loud' is not an option of Streamlit's, expected one like --logger.level=debug" in said
