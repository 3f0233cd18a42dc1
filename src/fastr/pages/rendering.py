"""One HTML file that needs no network, in the frame that all pages share.

A package that has a page keeps it in assets/page.html, which extends frame.html, with a style and a
script of its own in page.css and page.js where it needs them.
"""

import base64
import hashlib
from importlib import resources
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

FRAME = "fastr.pages"


def page(package: str, **content: Any) -> str:
    """A package's page with this content; all text in it is escaped."""
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package, "assets"), PackageLoader(FRAME, "assets")]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    script = asset(package, "page.js")
    return environment.get_template("page.html").render(
        policy=policy(script),
        script=Markup(script),
        style=Markup(asset(FRAME, "frame.css") + asset(package, "page.css")),
        **content,
    )


def policy(script: str) -> str:
    """Nothing is fetched, and no script runs but this one, whatever a name may contain."""
    own = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = f"; script-src 'sha256-{own}'" if script else ""
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data:{allowed}"


def asset(package: str, name: str) -> str:
    """A file beside a package's template; empty where there is none."""
    file = resources.files(package).joinpath("assets", name)
    return file.read_text(encoding="utf-8") if file.is_file() else ""


def embedded(content: bytes, kind: str) -> str:
    """A picture as an address that holds it; the kind is png or svg+xml."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
