"""Every link of the built site leads somewhere, and nothing is loaded from elsewhere.

python tools/check_links.py build/site
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

SCHEMES = ("http", "https", "mailto")


class Links(HTMLParser):
    """The anchors of a page, what it links to, and what it loads."""

    def __init__(self, page: Path):
        super().__init__()
        self.anchors: set[str] = {""}
        self.targets: list[str] = []
        self.loaded: list[str] = []
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect identities, links and loads of one element."""
        values = {name: value for name, value in attrs if value}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if "href" in values:
            (self.loaded if tag == "link" else self.targets).append(values["href"])
        if "src" in values:
            self.loaded.append(values["src"])


def problems(site: Path) -> list[str]:
    """One sentence for each link that is broken, and each load from elsewhere."""
    pages = {path.resolve(): Links(path) for path in site.rglob("*.html")}
    found = []
    for path, page in pages.items():
        name = path.relative_to(site.resolve())
        for link in page.loaded:
            if urlsplit(link).netloc:
                found.append(f"{name} loads {link} from elsewhere")
        for link in page.targets + page.loaded:
            if fault := broken(link, path, pages, site.resolve()):
                found.append(f"{name}: {link} {fault}")
    return found


def broken(link: str, page: Path, pages: dict[Path, Links], site: Path) -> str:
    """What is wrong with a link of a page; nothing, if it is sound."""
    parts = urlsplit(link)
    if parts.scheme == "data":
        return ""
    if parts.scheme or parts.netloc:
        sound = parts.scheme in SCHEMES and (parts.scheme == "mailto" or "." in parts.netloc)
        return "" if sound and " " not in link else "is not an address"
    place, anchor = urldefrag(link)
    start = site if place.startswith("/") else page.parent
    target = (start / unquote(place).lstrip("/")).resolve() if place else page
    target = target / "index.html" if target.is_dir() else target
    if not target.is_file():
        return "leads nowhere"
    if target in pages and unquote(anchor) not in pages[target].anchors:
        return "has no such anchor"
    return ""


def main() -> None:
    """Check a built site; exit code 1 if anything is wrong."""
    site = Path(sys.argv[1])
    found = problems(site)
    print("\n".join(found) or f"{site}: all links are sound")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
