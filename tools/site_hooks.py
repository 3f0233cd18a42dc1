"""What the documentation's site does beyond MkDocs: tolerant navigation, files from outside docs/.

Pages are written to be read in the repository, too. Links that leave docs/ for results/ or for a
page at the root are therefore rewritten here, and not in the pages.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
OUTSIDE = {
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "results/README.md": "results/README.md",
}
"""Pages of the site that lie outside docs/, by their place on the site."""
RESULT = re.compile(r"\]\(\.\./(results/[^)#\s]+)\)")
"""A link from a page in docs/ to a file of results."""
SHOWN = re.compile(r"!\[[^\]]*\]\((\w[^)#:\s]+)\)")
"""A picture beside the page that shows it."""
NAMED_PAGE = re.compile(r"(?<!\[)`docs/([\w-]+\.md)`")
"""A page that the text names as a file of the repository."""
SYMBOLS = re.compile(r"^::: (fastr[\w.]*)$", re.MULTILINE)
"""A module whose reference is wanted."""
PICTURE = re.compile(r'<img alt="([^"]*)" src="(?:\.\./)*pictures/([\w-]+\.svg)" ?/?>')


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Keep what is there of the navigation, and list what nobody has listed."""
    docs = Path(config.docs_dir)
    pages = {str(path.relative_to(docs)) for path in docs.rglob("*.md")} | OUTSIDE.keys()
    listed = {page for section in config.nav or [] for pages in section.values() for page in pages}
    config.nav = [
        {title: [page for page in kept if page in pages] + rest}
        for section in config.nav or []
        for title, kept in section.items()
        if (rest := sorted(pages - listed) if title == "More" else []) or pages & set(kept)
    ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages at the root, and the results that pages show."""
    for page, source in OUTSIDE.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    texts = [file.content_string for file in files.documentation_pages()]
    shown = {found for text in texts for found in RESULT.findall(text)} - OUTSIDE.keys()
    for page, source in OUTSIDE.items():
        beside = SHOWN.findall((ROOT / source).read_text())
        shown |= {str(Path(page).parent / picture) for picture in beside}
    for path in sorted(shown):
        if (ROOT / path).is_file():  # one that is not there stays a broken link, and is reported
            files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, files: Files, **_: Any) -> str:
    """Rewrite what means something else in the repository than on the site."""
    for place, source in OUTSIDE.items():
        markdown = markdown.replace(f"](../{source})", f"]({place})")
    markdown = RESULT.sub(r"](\1)", markdown)
    markdown = SYMBOLS.sub(lambda found: found[0] if module(found[1]) else "", markdown)
    up = "../" * page.file.src_uri.count("/")

    def linked(found: re.Match[str]) -> str:
        name = found[1]
        there = files.get_file_from_path(name) and name != page.file.src_uri
        return f"[{found[0]}]({up}{name})" if there else found[0]

    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(p if p.startswith("```") else NAMED_PAGE.sub(linked, p) for p in parts)


def module(name: str) -> bool:
    """Whether there is a module of this name."""
    path = ROOT / "src" / name.replace(".", "/")
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def on_page_content(html: str, **_: Any) -> str:
    """Put pictures into the page itself, where they take the page's colours."""
    return PICTURE.sub(inlined, html)


def inlined(found: re.Match[str]) -> str:
    """The picture in place of a reference to it."""
    drawing = (ROOT / "docs" / "pictures" / found[2]).read_text()
    return f'<figure role="img" aria-label="{found[1]}">{drawing}</figure>'
