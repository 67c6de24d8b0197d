# The other end of the tap `eth0`: with `answer`, a neighbour 02:00:00:00:00:aa that has every IPv4 address and
# answers pings, while the command that follows runs; with `ask`, a host 10.6.0.7 that looks for 10.6.0.1; with `open`,
# no host, with that many queues. A last argument `header` puts a virtio header before each frame.
import fcntl, os, select, struct, subprocess, sys, time

IFF_TAP, IFF_MULTI_QUEUE, IFF_NO_PI, IFF_VNET_HDR, TUNSETIFF = 2, 0x100, 0x1000, 0x4000, 0x400454CA
MAC = bytes.fromhex("0200000000aa")
HEADER = b"\0" * 10 if sys.argv[-1] == "header" else b""


def attach(flags=0):
    fd = os.open("/dev/net/tun", os.O_RDWR)
    flags |= IFF_TAP | IFF_NO_PI | (IFF_VNET_HDR if HEADER else 0)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", b"eth0", flags))
    return fd


def sum16(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def arp(kind, to, mine, theirs_mac, theirs):
    return to + MAC + struct.pack("!HHHBBH", 0x806, 1, 0x800, 6, 4, kind) + MAC + mine + theirs_mac + theirs


def answer_to(frame):
    if frame[12:14] == b"\x08\x06" and frame[20:22] == b"\0\1":
        return arp(2, frame[6:12], frame[38:42], frame[22:28], frame[28:32])
    if frame[12:14] == b"\x08\0" and frame[23] == 1 and frame[34] == 8:
        echo = b"\0\0\0\0" + frame[38:]
        echo = b"\0\0" + struct.pack("!H", sum16(echo + b"\0" * (len(echo) % 2))) + echo[4:]
        return frame[6:12] + MAC + frame[12:26] + frame[30:34] + frame[26:30] + echo
    return None


def main():
    what = sys.argv[1]
    if what == "open":
        queues = int(sys.argv[2])
        opened = [attach(IFF_MULTI_QUEUE if queues > 1 else 0) for _ in range(queues)]
        print(len(opened))
        return 0
    fd = attach()
    command = subprocess.Popen(sys.argv[2].split()) if what == "answer" else None
    question = arp(1, b"\xff" * 6, bytes([10, 6, 0, 7]), b"\0" * 6, bytes([10, 6, 0, 1]))
    end = time.monotonic() + 60  # a slow machine takes seconds for what follows
    while time.monotonic() < end:
        if what == "ask":
            try:
                os.write(fd, HEADER + question)
            except OSError:  # it is not up yet
                pass
        if command and command.poll() is not None:
            return command.returncode
        if select.select([fd], [], [], 0.02)[0]:
            frame = os.read(fd, 65536)[len(HEADER):]
            if what == "ask" and frame[:6] == MAC and frame[12:14] == b"\x08\x06":
                print(frame[22:28].hex(":"))
                return 0
            reply = what == "answer" and answer_to(frame)
            if reply:
                os.write(fd, HEADER + reply)
    return 1


sys.exit(main())
