"""Environment variables of the process; `config` reads those that the configuration refers to."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from icewright.core.errors import UsageError

DEFAULT_FILE = "icewright.yaml"


def server_token() -> str | None:
    """Return the API token of ICEWRIGHT_TOKEN; tokens are on no command line, which other users can see."""
    return os.environ.get("ICEWRIGHT_TOKEN") or None


def erasure_key() -> str:
    """Return the secret that signs certificates of erasure, of ICEWRIGHT_ERASURE_KEY. Raises `UsageError`."""
    if key := os.environ.get("ICEWRIGHT_ERASURE_KEY"):
        return key
    raise UsageError("set ICEWRIGHT_ERASURE_KEY to a secret: who knows it can tell that a certificate is yours")


def pager() -> str | None:
    """Return the command that shows long output on a terminal: of PAGER, else less; None where that is blank."""
    return os.environ.get("PAGER", shutil.which("less") or "") or None


def with_less_options() -> dict[str, str]:
    """Return the environment of a pager: less shows colours, and leaves what fits and what was read on the terminal."""
    return {"LESS": "FRX", **os.environ}


def has_display() -> bool:
    """Return whether this machine has a display, on which a browser can be opened."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def find_config(option: str | None) -> Path:
    """Return the path of --config, else of ICEWRIGHT_CONFIG, else icewright.yaml here. Raises `UsageError`."""
    path = Path(option or os.environ.get("ICEWRIGHT_CONFIG") or DEFAULT_FILE).expanduser()
    if not path.is_file():
        missing = f"{path} is a folder, no configuration" if path.is_dir() else f"there is no configuration {path}"
        raise UsageError(
            f"{missing}: name one with --config or ICEWRIGHT_CONFIG, write one with "
            "`icewright init`, or make an example with `icewright demo --dir demo`"
        )
    return path.resolve()


def user_cache() -> Path:
    """Return the folder of this user's caches, which no configuration changes."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "icewright"


def without_pydantic_plugins() -> None:
    """Let Pydantic look for no plugins, unless the environment says so: it reads the metadata of each package."""
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
