#!/usr/bin/env python3
"""Checks the test vectors of the wire protocol against the documents, and not against the Rust code.

This program is a second decoder and encoder of frames. It uses only docs/protocol/frame.md and the
tables of docs/protocol/reference.md. So it finds a mistake that the Rust encoder and the Rust decoder
have in common. For each message, the bytes in vectors/wire/*.hex must decode to the fields in the .json
file of the same name, and these fields must encode to the same bytes. The decoder must refuse each
truncated body. It must refuse each malformed frame with the error that the .json file names.
"""

import json
import re
import struct
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
VECTORS = TOP / "vectors" / "wire"
REFERENCE = TOP / "docs" / "protocol" / "reference.md"


class Refused(Exception):
    """Raised for bytes that a receiver must refuse. `error` is the name of the error code."""

    def __init__(self, error, why):
        super().__init__(f"{error}: {why}")
        self.error = error


def crc32c(data):
    """Returns the CRC-32C (Castagnoli) of bytes."""
    value = 0xFFFFFFFF
    for byte in data:
        value = CRC_TABLE[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ 0xFFFFFFFF


def crc_of_byte(byte):
    for _ in range(8):
        byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
    return byte


CRC_TABLE = [crc_of_byte(byte) for byte in range(256)]


# The layout of the header, as in frame.md.
HEADER = struct.Struct("<4sHH HHHH II Q Q IHBB Q II Q Q QQ IQ III I I".replace(" ", ""))
HEADER_NAMES = (
    "magic length zero6 protocol message message_version flags body_bytes data_bytes tag session "
    "slot status priority reserved sequence group time_left_ms epoch lowest_map trace_low trace_high "
    "sender_group sender_epoch user user_group job body_crc header_crc"
).split()
RESERVED = ("reserved",)
KNOWN_FLAGS = 0b111
assert HEADER.size == 128


class Reference:
    """The tables of docs/protocol/reference.md."""

    def __init__(self, text):
        self.plain = {}  # type -> layout
        self.limits = {}
        self.messages = {}  # number -> (request, reply)
        self.fields = {}  # heading -> [(field, type)]
        self.variants = {}  # enum -> [(number, variant)]
        heading = ""
        for line in text.splitlines():
            if line.startswith("#"):
                heading = line.lstrip("# ")
                self.fields.setdefault(heading, [])
            elif line.startswith("| ") and not line.startswith("|---"):
                self.row(heading, [cell.strip() for cell in line.strip("|").split(" | ")])

    def row(self, heading, cells):
        name = cells[0].strip("`")
        if heading == "Reference of all messages" and name != "type":
            self.plain[name] = cells[1]
        elif heading == "Limits" and name != "limit":
            self.limits[name] = int(cells[1])
        elif heading == "Messages" and name != "number":
            self.messages[int(name)] = (cells[1].strip("`"), cells[2].strip("`"))
        elif name.isdigit():
            self.variants.setdefault(heading, []).append((int(name), cells[1].strip("`")))
        elif cells[0].startswith("`") and len(cells) == 3:
            self.fields[heading].append((name, cells[1].strip("`")))

    def body(self, number, is_reply):
        """Returns the fields of the body of a request or a reply."""
        request, reply = self.messages[number]
        return self.fields[reply if is_reply else f"{number} {request}"]


INTEGERS = {"u8": (1, False), "u16": (2, False), "u32": (4, False), "u64": (8, False),
            "u128": (16, False), "i64": (8, True)}


class Decoder:
    def __init__(self, reference, data):
        self.reference = reference
        self.data = data
        self.at = 0

    def take(self, count):
        if count > len(self.data) - self.at:
            raise Refused("Corrupt", f"at {self.at}: {count} bytes expected")
        self.at += count
        return self.data[self.at - count:self.at]

    def integer(self, layout):
        size, signed = INTEGERS[layout]
        return int.from_bytes(self.take(size), "little", signed=signed)

    def boolean(self):
        value = self.integer("u8")
        if value > 1:
            raise Refused("Corrupt", f"at {self.at}: {value} is neither 0 nor 1")
        return bool(value)

    def record(self, fields):
        return {name: self.value(kind) for name, kind in fields}

    def whole(self, fields):
        value = self.record(fields)
        if self.at != len(self.data):
            raise Refused("Corrupt", f"{len(self.data) - self.at} bytes after the last field")
        return value

    def value(self, kind):
        if kind.startswith("Vec<"):
            count = self.integer("u32")
            if count > len(self.data) - self.at:
                raise Refused("Corrupt", f"{count} items announced")
            return [self.value(kind[4:-1]) for _ in range(count)]
        if kind.startswith("Option<"):
            return self.value(kind[7:-1]) if self.boolean() else None
        if kind.startswith("("):
            return [self.value(part.strip()) for part in kind[1:-1].split(",")]
        if kind in self.reference.variants:
            return self.variant(kind)
        layout = self.reference.plain.get(kind)
        if layout is None:
            return self.record(self.reference.fields[kind])
        if layout == "u128":
            return f"0x{self.integer(layout):032x}"
        if layout in INTEGERS:
            return self.integer(layout)
        if layout == "u8 (0 or 1)":
            return self.boolean()
        if layout == "u8[16]":
            return self.take(16).hex()
        data = self.take(self.integer("u32"))
        if layout == "u32 length, bytes":
            return escape(data)
        assert layout == "u32 length, UTF-8 bytes", layout
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            raise Refused("Corrupt", "text is not UTF-8") from None

    def variant(self, kind):
        number = self.integer("u8")
        names = dict(self.reference.variants[kind])
        if number not in names:
            raise Refused("Corrupt", f"{number} is no {kind}")
        name = names[number]
        if not has_fields(self.reference, kind):
            return name
        return {name: self.record(self.reference.fields.get(f"{kind}::{name}", []))}


def has_fields(reference, kind):
    return any(heading.startswith(f"{kind}::") for heading in reference.fields)


def encode(reference, kind, value):
    """Returns the encoded bytes of a value of the type `kind`."""
    if kind.startswith("Vec<"):
        items = b"".join(encode(reference, kind[4:-1], item) for item in value)
        return len(value).to_bytes(4, "little") + items
    if kind.startswith("Option<"):
        return b"\0" if value is None else b"\1" + encode(reference, kind[7:-1], value)
    if kind.startswith("("):
        parts = [part.strip() for part in kind[1:-1].split(",")]
        return b"".join(encode(reference, part, item) for part, item in zip(parts, value))
    if kind in reference.variants:
        numbers = {name: number for number, name in reference.variants[kind]}
        if isinstance(value, str):
            return bytes([numbers[value]])
        (name, fields), = value.items()
        kinds = reference.fields.get(f"{kind}::{name}", [])
        return bytes([numbers[name]]) + encode_record(reference, kinds, fields)
    layout = reference.plain.get(kind)
    if layout is None:
        return encode_record(reference, reference.fields[kind], value)
    if layout in INTEGERS:
        size, signed = INTEGERS[layout]
        number = int(value, 16) if layout == "u128" else value
        return number.to_bytes(size, "little", signed=signed)
    if layout == "u8 (0 or 1)":
        return bytes([value])
    if layout == "u8[16]":
        return bytes.fromhex(value)
    data = unescape(value) if layout == "u32 length, bytes" else value.encode("utf-8")
    return len(data).to_bytes(4, "little") + data


def encode_record(reference, fields, value):
    assert set(value) == {name for name, _ in fields}, f"{set(value)} is not {fields}"
    return b"".join(encode(reference, kind, value[name]) for name, kind in fields)


def escape(data):
    return "".join(
        chr(byte) if 0x20 <= byte <= 0x7E and byte != 0x5C else f"\\x{byte:02x}" for byte in data)


def unescape(text):
    data = re.sub(r"\\x([0-9a-f]{2})", lambda match: chr(int(match[1], 16)), text)
    return data.encode("latin-1")


def decode_header(reference, frame):
    """Returns the fields of a header. Makes the checks of frame.md first, in the same order."""
    if len(frame) < HEADER.size:
        raise Refused("Protocol", "shorter than a header")
    header = dict(zip(HEADER_NAMES, HEADER.unpack(frame[:HEADER.size])))
    if header["magic"] != b"SKEP":
        raise Refused("Protocol", "magic")
    if crc32c(frame[:124]) != header["header_crc"]:
        raise Refused("Protocol", "checksum of the header")
    if header["length"] != HEADER.size:
        raise Refused("Protocol", "length of the header")
    if header["zero6"] or any(header[name] for name in RESERVED):
        raise Refused("Protocol", "reserved places")
    if header["flags"] & ~KNOWN_FLAGS or header["flags"] & 0b101 == 0b100:
        raise Refused("Protocol", "flags")
    limits = reference.limits
    if header["body_bytes"] > limits["bytes of a body"]:
        raise Refused("Protocol", "length of the body")
    if header["data_bytes"] > limits["bytes of bulk data"]:
        raise Refused("Protocol", "length of the data")
    return header


def decode(reference, frame):
    """Decodes a frame. Returns its fields in the form in which the .json files contain them."""
    header = decode_header(reference, frame)
    body = frame[HEADER.size:HEADER.size + header["body_bytes"]]
    data = frame[HEADER.size + header["body_bytes"]:]
    if len(body) != header["body_bytes"] or crc32c(body) != header["body_crc"]:
        raise Refused("Protocol", "checksum of the body")
    if len(data) != header["data_bytes"]:
        raise Refused("Protocol", "length of the data")
    fields = reference.body(header["message"], bool(header["flags"] & 1))
    shown = {name: header[name] for name in HEADER_NAMES[3:20] + HEADER_NAMES[22:27]}
    shown["trace"] = f"0x{header['trace_high'] << 64 | header['trace_low']:032x}"
    return {"header": shown, "body": Decoder(reference, body).whole(fields), "data": escape(data)}


def encode_frame(reference, shown):
    """Returns the bytes of the frame whose fields a .json file contains."""
    header = dict(shown["header"])
    fields = reference.body(header["message"], bool(header["flags"] & 1))
    body = encode_record(reference, fields, shown["body"])
    data = unescape(shown["data"])
    trace = int(header.pop("trace"), 16)
    header.update(
        magic=b"SKEP", length=128, zero6=0, trace_low=trace & (1 << 64) - 1,
        trace_high=trace >> 64, body_crc=crc32c(body), header_crc=0,
        body_bytes=len(body), data_bytes=len(data))
    start = HEADER.pack(*(header[name] for name in HEADER_NAMES))[:124]
    return start + crc32c(start).to_bytes(4, "little") + body + data


def read_hex(path):
    """Returns the frames of a .hex file by name."""
    frames = {}
    for line in path.read_text().splitlines():
        if line.startswith("# "):
            name = line[2:]
            assert name not in frames, f"{path}: {name} stands twice"
            frames[name] = b""
        else:
            frames[name] += bytes.fromhex(line)
    return frames


def check_granules(shown):
    """Checks the checksums of bulk data. Each piece ends at a multiple of 4,096 in the chunk file."""
    body, data = shown["body"], unescape(shown["data"])
    if not data or "offset" not in body:
        return
    first = 4096 - body["offset"] % 4096
    pieces = [data[:first]] + [data[at:at + 4096] for at in range(first, len(data), 4096)]
    assert body["checksums"] == [crc32c(piece) for piece in pieces], "checksums of the data"


def check_inline(shown):
    """Checks the checksum of bytes that are a field of the body."""
    body = shown["body"]
    if "bytes" in body and "checksum" in body:
        assert body["checksum"] == crc32c(unescape(body["bytes"])), "checksum of the bytes"


def check_message(reference, path):
    """Checks the .hex file and the .json file of a message. Returns the number of their frames."""
    expected = json.loads(path.with_suffix(".json").read_text())
    frames = read_hex(path)
    assert set(frames) == set(expected["frames"]), f"{path}: other frames than in the .json"
    for name, frame in frames.items():
        shown = expected["frames"][name]
        place = f"{path.name}, {name}"
        number, is_reply = shown["header"]["message"], shown["header"]["flags"] & 1
        assert reference.messages[number] == (expected["message"], expected["reply"]), place
        assert is_reply == name.startswith("reply"), place
        assert decode(reference, frame) == shown, f"{place}: decodes to other fields"
        assert encode_frame(reference, shown) == frame, f"{place}: encodes to other bytes"
        check_granules(shown)
        check_inline(shown)
        body = frame[HEADER.size:HEADER.size + shown["header"]["body_bytes"]]
        for end in range(len(body)):
            try:
                Decoder(reference, body[:end]).whole(reference.body(number, is_reply))
            except Refused:
                continue
            raise AssertionError(f"{place}: the first {end} bytes of the body are taken for all")
    return len(frames)


def check_malformed(reference, path):
    expected = json.loads(path.with_suffix(".json").read_text())
    frames = read_hex(path)
    assert set(frames) == set(expected), f"{path}: other frames than in the .json"
    for name, frame in frames.items():
        try:
            decode(reference, frame)
        except Refused as refused:
            wanted = expected[name]["error"]
            assert refused.error == wanted, f"{path.name}, {name}: {refused}, not {wanted}"
        else:
            raise AssertionError(f"{path.name}, {name}: taken for good")
    return len(frames)


def main():
    assert crc32c(b"123456789") == 0xE3069283
    reference = Reference(REFERENCE.read_text())
    paths = sorted(VECTORS.glob("*.hex"))
    malformed = [path for path in paths if path.name.startswith("malformed-")]
    messages = [path for path in paths if path not in malformed]
    assert malformed and len(messages) >= len(reference.messages), "vectors are missing"
    good = sum(check_message(reference, path) for path in messages)
    bad = sum(check_malformed(reference, path) for path in malformed)
    print(f"{good} frames of {len(messages)} messages and {bad} malformed frames are as documented")


if __name__ == "__main__":
    try:
        main()
    except AssertionError as problem:
        sys.exit(f"error: {problem}")
