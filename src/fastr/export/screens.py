"""Where pictures go: a film on disk, or a window."""

import contextlib
import time
import warnings
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from fastr.core import UserError

PICTURES_PER_SECOND = 25
ENDINGS = (".mp4", ".gif")
# Colours are chosen for the film at hand; ffmpeg's own 256 are the same for all and look like it.
PALETTE = "[0:v]split[a][b];[a]palettegen[p];[b][p]paletteuse=dither=none"
GIF: dict[str, Any] = {
    "codec": "gif",
    "pix_fmt_out": "pal8",
    "quality": None,
    "macro_block_size": 1,
    "output_params": ["-filter_complex", PALETTE],
}


@runtime_checkable
class Screen(Protocol):
    """Takes pictures one by one."""

    def show(self, picture: np.ndarray) -> bool:
        """Take one more; False once nobody looks any more."""
        ...


class Film:
    """A video file, made with its first picture; its ending chooses the format."""

    def __init__(self, path: Path, advance: Callable[[int], None]):
        self.path, self.advance = path, advance
        self.writer: Generator[None, Any, None] | None = None

    def show(self, picture: np.ndarray) -> bool:
        """Add one picture; all have the first one's size."""
        try:
            self.writer = self.writer or self.begun(*picture.shape[:2])
            self.writer.send(np.ascontiguousarray(picture))
        except OSError as error:
            # imageio_ffmpeg appends the whole command; ffmpeg itself has spoken on stderr.
            cause = str(error).partition("\n")[0] or type(error).__name__
            said = (
                f"{self.path} cannot be written: ffmpeg, whose words stand above, ended ({cause})."
            )
            raise UserError(said) from None
        self.advance(1)
        return True

    def begun(self, height: int, width: int) -> Generator[None, Any, None]:
        """The encoder, waiting for the first picture; returns are played without it."""
        import imageio_ffmpeg

        gif = self.path.suffix.lower() == ".gif"
        options: dict[str, Any] = GIF if gif else {"quality": 7, "macro_block_size": 2}
        writer = imageio_ffmpeg.write_frames(
            self.path,
            (width, height),
            fps=PICTURES_PER_SECOND,
            ffmpeg_log_level="error",
            **options,
        )
        with warnings.catch_warnings():
            # Python warns of any fork beside JAX's threads; this starts another program at once.
            warnings.filterwarnings("ignore", message=r"os\.fork", category=RuntimeWarning)
            writer.send(None)
        return writer

    def __enter__(self) -> "Film":
        return self

    def __exit__(self, *_: object) -> None:
        if self.writer is not None:
            self.writer.close()


def check_film(path: Path) -> None:
    """Raise UserError unless a film can be made at this path."""
    if path.suffix.lower() not in ENDINGS:
        raise UserError(f"--video {path} must end in {' or '.join(ENDINGS)}.")
    # Opening a named pipe waits until somebody reads from it.
    special = path.exists() and not path.is_file()
    if special or not path.parent.is_dir():
        missing = f"there is no directory {path.parent}"
        kind = "a directory" if path.is_dir() else "a pipe or a device, not a file"
        raise UserError(
            f"--video {path} cannot be written: {f'it is {kind}' if special else missing}."
        )
    new = not path.exists()
    try:
        path.open("ab").close()
    except OSError as error:
        raise UserError(f"--video {path} cannot be written: {error.strerror}.") from None
    if new:
        # Where a link leads to nothing yet, what it leads to was made.
        path.resolve().unlink()


class Window:
    """A window on this machine's display, at the film's pace."""

    def __init__(self, title: str):
        try:
            import tkinter
        except ImportError:
            raise UserError(
                "--window needs Python's tkinter (Debian: apt-get install python3-tk); "
                "--video FILE needs no window."
            ) from None
        try:
            self.root = tkinter.Tk()
        except tkinter.TclError as error:
            raise UserError(
                f"--window finds no display ({error}): write a film with --video FILE instead."
            ) from None
        self.root.title(title)
        self.root.resizable(width=False, height=False)
        self.root.protocol("WM_DELETE_WINDOW", self.leave)
        self.root.bind("<Escape>", self.leave)
        self.root.bind("q", self.leave)
        self.label = tkinter.Label(self.root, borderwidth=0)
        self.label.pack()
        self.image = tkinter.PhotoImage(master=self.root)
        self.watched = True
        self.due = time.monotonic()

    def leave(self, _: object = None) -> None:
        """Nobody looks any more."""
        self.watched = False

    def show(self, picture: np.ndarray) -> bool:
        """Show one picture when its time has come; False once the window was closed."""
        time.sleep(max(0.0, self.due - time.monotonic()))
        self.due = max(self.due, time.monotonic()) + 1.0 / PICTURES_PER_SECOND
        height, width, _ = picture.shape
        self.image.configure(data=b"P6 %d %d 255 " % (width, height) + picture.tobytes())
        self.label.configure(image=self.image)
        self.root.update()
        return self.watched

    def __enter__(self) -> "Window":
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(Exception):  # the display may be gone already
            self.root.destroy()
