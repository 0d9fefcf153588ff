"""
Machines of a network, each a namespace of its own on this one: nothing that listens on one's
loopback is heard on another, and folders of one can be hidden from the others. Needs util-linux and
iproute2, and a kernel that lets a user make namespaces.
"""

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

TOOLS = ("unshare", "nsenter", "ip")
FOREVER = ("sleep", "infinity")


class Network:
    """Namespaces that a bridge joins, each held by a process that sleeps."""

    def __init__(self) -> None:
        self.held: list[subprocess.Popen[bytes]] = []
        self.addresses: dict[str, str] = {}

    def start(self) -> None:
        self.bridge = self.hold("unshare", "--map-root-user", "--net")
        self.within(self.bridge, "ip link add bridge0 type bridge")
        self.within(self.bridge, "ip link set bridge0 up")

    def hold(self, *command: str) -> int:
        """Start a process in a new network namespace, and return its number when it is there."""
        process = subprocess.Popen([*command, *FOREVER], stderr=subprocess.DEVNULL)
        self.held.append(process)
        comm = Path(f"/proc/{process.pid}/comm")
        for _ in range(100):
            with suppress(OSError):
                if comm.read_text().strip() == FOREVER[0]:
                    return process.pid
            if process.poll() is not None:
                break
            time.sleep(0.05)
        raise OSError(f"{command[0]}: no namespace of its own is allowed here")

    def enter(self, number: int, *more: str) -> list[str]:
        return ["nsenter", "--preserve-credentials", "--target", str(number), "--user", *more]

    def within(self, number: int, line: str) -> None:
        command = [*self.enter(number, "--net"), *line.split()]
        subprocess.run(command, check=True, capture_output=True)

    def add(self, name: str) -> list[str]:
        """Add a machine; return what a command on it begins with."""
        number = self.hold(*self.enter(self.bridge, "unshare", "--net"))
        k = len(self.addresses) + 1
        self.addresses[name] = f"10.9.0.{k}"
        self.within(self.bridge, f"ip link add port{k} type veth peer name eth0 netns {number}")
        self.within(self.bridge, f"ip link set port{k} master bridge0 up")
        self.within(number, f"ip addr add {self.addresses[name]}/24 dev eth0")
        self.within(number, "ip link set eth0 up")
        self.within(number, "ip link set lo up")
        return self.enter(number, "--net")

    def close(self) -> None:
        for process in self.held:
            process.kill()
            process.wait()


@contextmanager
def network() -> Iterator[Network]:
    """Give a network, closed at the end. Raises OSError where none can be made."""
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        raise OSError(f"{missing[0]} is not here")
    made = Network()
    try:
        made.start()
        yield made
    except subprocess.CalledProcessError as error:
        raise OSError(error.stderr.decode().strip()) from None
    finally:
        made.close()


def hidden(folder: Path) -> list[str]:
    """Return what a command that must not see a folder begins with."""
    over = 'mount -t tmpfs none "$0" && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", over, str(folder)]
