"""A SuperNode that runs the package installed at the site, whatever code the server's app brings.

A Flower app brings its code to the SuperNodes, so anybody who may submit a run could make a
SuperNode run any code. A SuperNode starts each task as a command that it finds on its PATH.
``fedclust site`` puts a folder first on the PATH, in which the commands of these names start this
module. The module gives Flower's own process the site's client instead of the app's, and installs
nothing.
"""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

# Slow imports are inside functions, because Flower gives up a process that does not report in time.
if TYPE_CHECKING:
    from flwr.clientapp import ClientApp

    from flower_fedclust.site.app import Site

log = logging.getLogger(__name__)

#: The versions of Flower, major and minor, whose SuperNode was reviewed and is tested.
SUPPORTED = ("1.41", "1.42")

#: The commands with which a SuperNode would start an app's code. At a site, both run the site's client.
TASKS = ("flwr-clientapp", "flwr-agentapp")

#: Commands that a site's SuperNode never starts.
OTHER_TASKS = ("flwr-connector", "flwr-model", "flwr-serverapp", "flwr-simulation")

#: The module of Flower's command that starts a SuperNode.
SUPERNODE = "flwr.supernode.cli.flower_supernode"

#: Options of ``flower-supernode`` that would let an app bring code or run it elsewhere -> why a site refuses them.
CLOSED = {
    "--allow-runtime-dependency-installation": "it installs what an app asks for.",
    "--isolation": "a task must run as this command starts it.",
    "--node-config": "site.toml describes the site.",
}


class UnsupportedFlower(ValueError):  # noqa: N818
    """Flower's SuperNode has a version that may start an app's code in an unknown way."""


def check_flower() -> Any:
    """Return the module in which Flower's client process loads its app.

    Raises UnsupportedFlower if the installed version of Flower has not been reviewed.
    """
    installed = version("flwr")
    if installed.rpartition(".")[0] not in SUPPORTED:
        raise UnsupportedFlower(
            f"Flower {installed} is installed; a site is only tested with Flower {' and '.join(SUPPORTED)}, and other "
            "versions might run an app's code."
        )
    module = import_module("flwr.supernode.runtime.run_clientapp")
    missing = [name for name in REPLACED if not callable(getattr(module, name, None))]
    if missing:
        raise UnsupportedFlower(
            f"Flower {installed} has no {', '.join(missing)} where a client process loads its app."
        )
    return module


REPLACED = ("get_load_client_app_fn", "install_from_fab", "install_app_dependencies")


def start(site_toml: Path, options: Sequence[str]) -> NoReturn:
    """Become the site's SuperNode; ``options`` are passed to ``flower-supernode``."""
    command, environment = prepared(site_toml, options)
    os.execve(command[0], command, environment)


def check_options(options: Sequence[str]) -> None:
    """Raise a ValueError if an option of ``flower-supernode`` would let an app run its own code."""
    for option in options:
        name = option.partition("=")[0]
        # Flower's parser accepts any unambiguous prefix of an option.
        closed = next((full for full in CLOSED if len(name) > 2 and full.startswith(name)), None)
        if closed is not None:
            raise ValueError(f"{option} is given; {CLOSED[closed]}")


def prepared(site_toml: Path, options: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Write the folder for the PATH, and return the command of a site's SuperNode and its environment.

    Raises a ValueError for an option that would let an app run its code.
    """
    check_flower()
    check_options(options)
    from flower_fedclust.engine.disk import make_private
    from flower_fedclust.site.policy import SiteSettings

    settings = SiteSettings.from_toml(site_toml)
    names = make_private(Path(settings.folder) / "bin")
    for name in (*TASKS, *OTHER_TASKS):
        script = names / name
        line = shlex.join([sys.executable, "-P", "-m", __name__, str(site_toml.absolute()), name])
        script.write_text(f'#!/bin/sh\nexec {line} "$@"\n', encoding="utf-8")
        script.chmod(0o700)
    scripts = Path(sys.executable).parent
    path = os.pathsep.join([str(names), str(scripts), os.environ.get("PATH", os.defpath)])
    supernode = shutil.which("flower-supernode", path=path)
    if supernode is None:
        raise FileNotFoundError("there is no flower-supernode beside this Python; install flwr.")
    # A client uses one thread. This setting ensures it, so that the client need not import libraries to limit their
    # threads.
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "PATH": path, "PYTHONSAFEPATH": "1"}
    if "PYTHONPATH" in environment:
        folders = environment["PYTHONPATH"].split(os.pathsep)
        environment["PYTHONPATH"] = os.pathsep.join(filter(os.path.isabs, folders))
    return [supernode, *options], environment


def leave_working_directory_out() -> None:
    """Stop importing from the folder in which the command was started, where anybody may have put a file."""
    if not sys.flags.safe_path and sys.path and Path(sys.path[0]).resolve() == Path.cwd():
        del sys.path[0]  # Python has put the folder there
    sys.path[:] = filter(os.path.isabs, sys.path)


def main(site_toml: str, task: str, *arguments: str) -> None:
    """Answer one task of a SuperNode, with Flower's own client process and the site's client.

    The SuperNode starts this function by a command in :data:`TASKS`.
    """
    if task not in TASKS:
        _site_of(site_toml).note(
            "refused", task=task, reason="a site's SuperNode does not start this process."
        )
        raise SystemExit(1)
    module = check_flower()
    # The site's own audit log has the reason for a failure. Tracebacks would fill Flower's log with texts from the
    # server.
    logging.getLogger("flower_fedclust.engine.client").setLevel(logging.CRITICAL)

    def load(fab_id: str, fab_version: str, fab_hash: str) -> ClientApp:
        from flower_fedclust.site.policy import printable, restrict_process

        try:
            site = _site_of(site_toml)
        except Exception:
            log.exception("the site cannot be created from %s", site_toml)
            raise RuntimeError("failed") from None  # Flower sends the message to the server
        site.app_of_server = printable(f"{fab_id} {fab_version} {fab_hash[:16]}")
        restrict_process(site.settings.limits)
        return site.app

    module.get_load_client_app_fn = lambda **_: load
    module.install_from_fab = lambda *_, **__: None
    module.install_app_dependencies = _installs_nothing
    # Flower's client process imports the module of the command for SuperNodes. This process does not need it, nor the
    # database and the server that the module imports, so an empty module takes its place.
    command = sys.modules.setdefault(SUPERNODE, ModuleType(SUPERNODE))
    command.__dict__.setdefault("flower_supernode", None)
    sys.argv = ["flwr-clientapp", *arguments]
    import_module("flwr.supernode.cli").flwr_clientapp()


def _site_of(site_toml: str) -> Site:
    """Return the site that a ``site.toml`` describes."""
    from flower_fedclust.site.app import Site
    from flower_fedclust.site.policy import SiteSettings

    return Site(SiteSettings.from_toml(site_toml))


def _installs_nothing(*_: object, **__: object) -> NoReturn:
    """Refuse to install what an app asks for."""
    raise RuntimeError("refused")


if __name__ == "__main__":
    main(*sys.argv[1:])
