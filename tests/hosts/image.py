"""What a guest starts from: a kernel of Debian's package, unpacked only, and an initramfs.

The kernel is looked for where `machines/image.py` looks. The smallest one boots quickest: that of
linux-image-cloud-amd64.
"""

import shutil
from pathlib import Path

from machines import image

HERE = Path(__file__).resolve().parent
MODULES = ("virtio_pci", "virtio_net", "virtio_blk", "button", "evdev", "crc32c_generic", "ext4")
BUTTON = "#!/bin/sh\necho OFF >/dev/console\nsync\nexec poweroff -f\n"
"""What acpid runs when the power button is pressed."""


def missing() -> str:
    """Say what is missing for a guest; empty if nothing is."""
    if not image.kernels():
        return (
            f"there is no kernel in {image.kernel_folder()}: unpack Debian's there, by `apt-get "
            "download $(apt-cache depends linux-image-cloud-amd64 | awk '/Depends/ {print $2}')` "
            f"and `dpkg -x linux-image-*.deb {image.kernel_folder()}`"
        )
    return ""


def make(folder: Path) -> tuple[Path, Path]:
    """Make what every guest of a lab starts from; return the kernel and the initramfs."""
    kernel = image.kernels()[-1]
    tree = folder / "initramfs"
    for name in ("bin", "modules", "etc/acpi/PWRF"):
        (tree / name).mkdir(parents=True)
    busybox = shutil.which("busybox")
    assert busybox is not None
    for path, text in {
        "init": (HERE / "init.sh").read_text(),
        "etc/acpi/PWRF/00000080": BUTTON,
    }.items():
        (tree / path).write_text(text)
        (tree / path).chmod(0o755)
    shutil.copy(busybox, tree / "bin" / "busybox")
    (tree / "bin" / "sh").symlink_to("busybox")
    order = image.copy_modules(image.modules_of(kernel), tree / "modules", MODULES)
    (tree / "modules" / "order").write_text("\n".join(order) + "\n")
    return kernel, image.packed(tree, folder / "initramfs.cpio")
