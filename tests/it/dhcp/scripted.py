#!/usr/bin/python3
"""A DHCP server that answers as a file says: scripted.py LINK PLAN.

PLAN is read for each message. It is a JSON object: the message's type in lower case (discover, request, decline, release)
leads to a list of answers, which are sent in this order. An answer has these keys, all of them optional:
type      message type: 2 OFFER, 5 ACK, 6 NAK
only      the MAC of the only client that gets the answer
yiaddr    the address for the client
server    the server identifier and the source of the packet
options   object of option codes and their contents in hexadecimal; they replace those of the server
without   list of option codes that are left out
xid       "wrong": another transaction
chaddr    "wrong": another client
op        1 makes a request of the answer
cookie    "wrong": no DHCP message
sum       "wrong": a wrong UDP checksum
port      the destination port, 68 by default
cut       number of bytes of the message that are sent
sname     the content of the field in hexadecimal, and file that of the other one: options that did not fit (option 52)
raw       the whole message in hexadecimal, from the options on
"""
import json
import socket
import struct
import sys

NAMES = {1: "discover", 3: "request", 4: "decline", 7: "release", 8: "inform"}
COOKIE = b"\x63\x82\x53\x63"


def checksum(data):
    if len(data) % 2:
        data += b"\0"
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def options_of(message):
    found, at = {}, 240
    while at < len(message) and message[at] != 255:
        if message[at] == 0:
            at += 1
            continue
        length = message[at + 1]
        found[message[at]] = message[at + 2 : at + 2 + length]
        at += 2 + length
    return found


def frame(own_mac, mac, source, target, payload, answer):
    port = answer.get("port", 68)
    udp = struct.pack("!HHHH", 67, port, 8 + len(payload), 0) + payload
    pseudo = source + target + struct.pack("!BBH", 0, 17, len(udp))
    total = checksum(pseudo + udp) or 0xFFFF
    if answer.get("sum") == "wrong":
        total ^= 0x5555
    udp = udp[:6] + struct.pack("!H", total) + udp[8:]
    header = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0, source, target)
    header = header[:10] + struct.pack("!H", checksum(header)) + header[12:]
    return mac + own_mac + b"\x08\x00" + header + udp


def answer_to(message, answer):
    server = socket.inet_aton(answer.get("server", "10.1.0.254"))
    yiaddr = socket.inet_aton(answer.get("yiaddr", "0.0.0.0"))
    xid, chaddr = message[4:8], message[28:44]
    if answer.get("xid") == "wrong":
        xid = bytes(byte ^ 0xFF for byte in xid)
    if answer.get("chaddr") == "wrong":
        chaddr = bytes([2, 0, 0, 0, 0, 9]) + bytes(10)
    options = {53: bytes([answer["type"]]), 54: server}
    if answer["type"] != 6:
        options.update({1: b"\xff\xff\xff\0", 3: socket.inet_aton("10.1.0.254"), 51: struct.pack("!I", 600)})
    options.update({int(code): bytes.fromhex(text) for code, text in answer.get("options", {}).items()})
    for code in answer.get("without", []):
        options.pop(code, None)
    body = b""
    for code, value in options.items():
        # A long option is several with the same code (RFC 3396).
        for at in range(0, max(len(value), 1), 255):
            part = value[at : at + 255]
            body += bytes([code, len(part)]) + part
    body = bytes.fromhex(answer["raw"]) if "raw" in answer else body + b"\xff"
    cookie = b"\1\2\3\4" if answer.get("cookie") == "wrong" else COOKIE
    head = bytes([answer.get("op", 2), 1, 6, 0]) + xid + message[8:12] + message[12:16]
    fields = bytes.fromhex(answer.get("sname", "")).ljust(64, b"\0") + bytes.fromhex(answer.get("file", "")).ljust(128, b"\0")
    payload = head + yiaddr + server + bytes(4) + chaddr + fields + cookie + body
    return payload[: answer.get("cut", len(payload))], server


def main():
    link, plan_file = sys.argv[1:]
    packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
    packets.bind((link, 0x0800))
    own_mac = packets.getsockname()[4]
    print("scripted server is ready", flush=True)
    while True:
        data = packets.recv(4096)
        if len(data) < 282 or data[23] != 17 or data[36:38] != b"\0\x43" or data[42] != 1:
            continue
        message = data[42:]
        kind = NAMES.get(options_of(message).get(53, b"\0")[0], "?")
        print(kind, message[4:8].hex(), message[28:34].hex(":"), socket.inet_ntoa(message[12:16]), flush=True)
        with open(plan_file, encoding="utf-8") as plan:
            answers = json.load(plan).get(kind, [])
        for answer in answers:
            if answer.get("only", message[28:34].hex(":")) != message[28:34].hex(":"):
                continue
            payload, server = answer_to(message, answer)
            # RFC 2131, section 4.1: an address that the client has is used, but for a NAK.
            target = message[12:16] if any(message[12:16]) and answer["type"] != 6 else b"\xff" * 4
            mac = b"\xff" * 6 if answer["type"] == 6 else data[6:12]
            packets.send(frame(own_mac, mac, server, target, payload, answer))


main()
