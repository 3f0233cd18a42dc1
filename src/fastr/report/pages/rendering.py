"""One HTML file that needs no network, in the frame that all pages share.

A package that has a page keeps it in its folder assets: page.html, which extends frame.html, and
page.css, which follows frame.css.
"""

import base64
import hashlib
from importlib import resources
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

FRAME = "fastr.report.pages"


def page(package: str, *, script: str = "", **content: Any) -> str:
    """A package's page with this content, in which all text is escaped, and with this script."""
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package, "assets"), PackageLoader(FRAME, "assets")]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
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
    """A file beside a package's template."""
    return resources.files(package).joinpath("assets", name).read_text(encoding="utf-8")


def embedded(content: bytes, kind: str) -> str:
    """A picture as an address that holds it; the kind is png or svg+xml."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
