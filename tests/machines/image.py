"""What a machine starts from: a kernel of Debian's package, our initramfs, an empty disk.

The kernel is looked for in FOREWARN_KERNEL, else in ~/.cache/forewarn/kernel: a folder with what
`dpkg -x` makes of a package linux-image-*. It is not installed, and nothing here runs on the host.
"""

import compileall
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PROGRAMS = ("qemu-system-x86_64", "busybox", "mkfs.ext4")
SYSTEMD = Path("/lib/systemd/systemd")
MODULES = (
    "virtio_pci", "virtio_blk", "virtio_net", "virtio_console", "9pnet_virtio", "9p",
    "crc32c_generic", "ext4", "overlay", "autofs4",
)  # fmt: skip
ROOT_MODULE = "9p"
"""By which the machine reads the host's root; Debian's kernels for clouds are without it."""
DISK_MIB = 512
"""Of a sparse file: room for the machine's journal and state, a few MiB of it taken."""

PYTHON = "/opt/forewarn/python"
SOURCE = "/opt/forewarn/source"
LIBRARIES = "/opt/forewarn/libraries"
COMMAND = f"""#!/bin/sh
export PYTHONPATH={SOURCE}/src:{LIBRARIES} PYTHONDONTWRITEBYTECODE=1 LD_LIBRARY_PATH={PYTHON}/lib
exec {PYTHON}/bin/python{sys.version_info.major}.{sys.version_info.minor} -m forewarn "$@"
"""


def kernel_folder() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("FOREWARN_KERNEL") or cache / "forewarn" / "kernel")


def missing() -> str:
    """Say what is missing for a machine; empty if nothing is."""
    packages = "qemu-system-x86, busybox-static, e2fsprogs and systemd"
    absent = [name for name in PROGRAMS if shutil.which(name, path=search_path()) is None]
    if absent or not SYSTEMD.exists():
        return f"{', '.join(absent) or 'systemd'} is not installed: install {packages}"
    return missing_kernel("linux-image-amd64", ROOT_MODULE)


def missing_kernel(package: str, module: str = "") -> str:
    """Say how to get a kernel, with a module if it is given; empty if there is one."""
    if kernels(module):
        return ""
    return (
        f"no kernel {f'with {module} ' if module else ''}in {kernel_folder()}: unpack Debian's "
        f"there, by `apt-get download $(apt-cache depends {package} | awk '/Depends/ {{print $2}}')"
        f"` and `dpkg -x linux-image-*.deb {kernel_folder()}`"
    )


def search_path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def kernels(module: str = "") -> list[Path]:
    """Return the kernels that are unpacked; those that have a module, if it is given."""
    found = sorted(kernel_folder().glob("boot/vmlinuz-*"))
    return [kernel for kernel in found if any(modules_of(kernel).rglob(f"{module or '*'}.ko"))]


def modules_of(kernel: Path) -> Path:
    """Return the folder of a kernel's modules."""
    return kernel_folder() / "lib" / "modules" / kernel.name.removeprefix("vmlinuz-")


def make(folder: Path, files: dict[str, str]) -> tuple[Path, Path, Path]:
    """Make what one machine starts from.

    Args:
        folder: Where it is made.
        files: What the machine's root holds beside the host's, by path.

    Returns:
        The kernel, the initramfs, and a disk.
    """
    compileall.compile_dir(ROOT / "src", quiet=1)  # once here, and not at each start in there
    kernel = kernels(ROOT_MODULE)[-1]
    libraries = sysconfig.get_path("purelib")
    binds = ((sys.base_prefix, PYTHON), (str(ROOT), SOURCE), (libraries, LIBRARIES))
    own = {"/usr/local/bin/forewarn": COMMAND, **files}
    packed = {
        "init": (HERE / "init.sh").read_text(),
        "binds": "".join(f"{of} {to}\n" for of, to in binds),
        **{f"made{path}": text for path, text in own.items()},
    }
    return kernel, initramfs(folder, kernel, MODULES, packed), formatted(folder / "disk", DISK_MIB)


def initramfs(folder: Path, kernel: Path, modules: Iterable[str], files: Mapping[str, str]) -> Path:
    """Pack busybox, some of a kernel's modules, and files, of which scripts may be executed."""
    tree = folder / "initramfs"
    for name in ("bin", "modules"):
        (tree / name).mkdir(parents=True)
    busybox = shutil.which("busybox")
    assert busybox is not None
    shutil.copy(busybox, tree / "bin" / "busybox")
    (tree / "bin" / "sh").symlink_to("busybox")
    order = _copy_modules(modules_of(kernel), tree / "modules", modules)
    for path, text in {"modules/order": "\n".join([*order, ""]), **files}.items():
        made = tree / path
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_text(text)
        made.chmod(0o755 if text.startswith("#!") else 0o644)
    names = "\n".join(str(path.relative_to(tree)) for path in sorted(tree.rglob("*")))
    archive = ["busybox", "cpio", "-o", "-H", "newc", "-R", "0:0"]
    packed = folder / "initramfs.cpio"
    with packed.open("wb") as file:
        subprocess.run(
            archive,
            cwd=tree,
            input=names.encode(),
            stdout=file,
            stderr=subprocess.DEVNULL,
            check=True,
        )
    return packed


def _copy_modules(of: Path, to: Path, names: Iterable[str]) -> list[str]:
    """Copy modules and what they depend on; return their names, each after its own."""
    files = {path.stem.replace("-", "_"): path for path in of.rglob("*.ko")}
    order: list[str] = []

    def add(name: str) -> None:
        if name in order or name not in files:  # what is no file is in the kernel itself
            return
        found = re.search(rb"\0depends=([^\0]*)\0", files[name].read_bytes())
        for needed in found.group(1).decode().split(",") if found else []:
            add(needed.replace("-", "_"))
        shutil.copy(files[name], to / f"{name}.ko")
        order.append(name)

    for name in names:
        add(name)
    return order


def formatted(disk: Path, mib: int, tree: Path | None = None) -> Path:
    """Make a disk of ext4, with the files of a folder if it is given."""
    with disk.open("wb") as file:
        file.truncate(mib * 1024 * 1024)
    mkfs = shutil.which("mkfs.ext4", path=search_path())
    assert mkfs is not None
    of = ["-d", str(tree)] if tree else []
    subprocess.run([mkfs, "-q", "-F", "-m", "0", *of, str(disk)], check=True)
    return disk
