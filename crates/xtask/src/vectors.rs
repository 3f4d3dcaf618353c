//! `cargo xtask vectors`: generates test vectors of the wire protocol, both valid and malformed.
//!
//! For each message, `vectors/wire/<message>-v<version>.json` contains the fields of example
//! requests and replies, and the `.hex` file with the same name contains their bytes. The encoders
//! of the program produce the bytes. The fields are decoded from these bytes by the declared
//! layout. A reviewer compares both files with the examples in [`examples`]. `tools/vectors.py`
//! checks the files independently, and uses only the documents.

mod examples;
mod malformed;

use crate::repository::{Generated, Outcome, root, write_or_check};
use crate::schema;
use serde_json::{Map, Value, json};
use skep_types::codec::{Codec, Reader};
use skep_wire::Request;
use skep_wire::catalog::{self, CATALOG};
use skep_wire::frame::{HEADER_BYTES, HEADER_FIELDS, Header, check_body};
use std::path::PathBuf;

/// Examples of the requests and replies of one message.
pub(crate) struct Example {
    message: u16,
    version: u16,
    modifies: bool,
    bodies: Vec<Body>,
}

struct Body {
    is_reply: bool,
    body: Vec<u8>,
    data: Vec<u8>,
}

/// Creates an example of a message from one request and one reply.
fn example<R: Request>(request: &R, reply: &R::Reply) -> Example {
    let empty =
        Example { message: R::ID, version: R::VERSION, modifies: R::MODIFIES, bodies: Vec::new() };
    empty.request(request).reply::<R>(reply)
}

impl Example {
    /// Adds another request to the example.
    fn request<R: Request>(self, request: &R) -> Self {
        self.with(false, request.to_bytes())
    }

    /// Adds another reply to the example.
    fn reply<R: Request>(self, reply: &R::Reply) -> Self {
        self.with(true, reply.to_bytes())
    }

    fn with(mut self, is_reply: bool, body: Vec<u8>) -> Self {
        self.bodies.push(Body { is_reply, body, data: Vec::new() });
        self
    }

    /// Adds bulk data to the first request of the example, or to its first reply.
    fn data(mut self, is_reply: bool, data: &[u8]) -> Self {
        let found = self.bodies.iter_mut().find(|body| body.is_reply == is_reply);
        found.expect("an example has a request and a reply").data = data.to_vec();
        self
    }
}

impl Body {
    /// Returns the frame of this request or reply. Every header field is nonzero, as far as the
    /// message allows a nonzero value.
    fn frame(&self, of: &Example) -> Vec<u8> {
        let request = Header {
            message: of.message,
            message_version: of.version,
            tag: 0x0102_0304_0506_0708,
            session: skep_types::SessionId::new(9 << 32 | 1),
            slot: if of.modifies { 3 } else { 0 },
            sequence: if of.modifies { 17 } else { 0 },
            group: skep_types::GroupId::new(2),
            time_left_ms: 30_000,
            epoch: skep_types::Epoch::new(4),
            lowest_map: skep_types::MapVersion::new(21),
            trace: 0x1112_1314_1516_1718_191a_1b1c_1d1e_1f20,
            sender_group: skep_types::GroupId::new(5),
            sender_epoch: skep_types::Epoch::new(6),
            user: 1_001,
            user_group: 101,
            job: 4_242,
            ..Header::default()
        };
        let header = if self.is_reply { request.reply() } else { request };
        let mut frame = header.frame_raw(&self.body, self.data.len() as u32);
        frame.extend_from_slice(&self.data);
        frame
    }
}

/// A named frame of a vector file.
pub(crate) struct Vector {
    /// Name of the frame: `request`, `reply 2`, or a description of the error in a malformed frame.
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
}

/// Returns bytes as hexadecimal digits.
pub(crate) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads bytes from hexadecimal digits. `None` if a character is no digit, or if a byte has only
/// one digit.
pub(crate) fn from_hex(digits: &str) -> Option<Vec<u8>> {
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let digits = digits.as_bytes();
    if digits.len().is_multiple_of(2) { digits.chunks(2).map(byte).collect() } else { None }
}

/// Formats frames as text. Each frame begins with a line `# name`, followed by lines of 32 bytes in
/// hexadecimal.
fn hex(vectors: &[Vector]) -> String {
    let mut text = String::new();
    for vector in vectors {
        text += &format!("# {}\n", vector.name);
        for line in vector.bytes.chunks(32) {
            text += &to_hex(line);
            text.push('\n');
        }
    }
    text
}

/// Parses the frames of a `.hex` file.
///
/// # Errors
/// Describes the malformed part of the text.
pub(crate) fn parse_hex(text: &str) -> Outcome<Vec<Vector>> {
    let mut vectors: Vec<Vector> = Vec::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("# ") {
            vectors.push(Vector { name: name.to_owned(), bytes: Vec::new() });
            continue;
        }
        let current = vectors.last_mut().ok_or("the first line is not the name of a vector")?;
        current.bytes.extend(from_hex(line).ok_or("a line of bytes is not hexadecimal")?);
    }
    Ok(vectors)
}

/// Reads the frames of all vector files in the repository.
///
/// # Errors
/// Describes the reason why a file cannot be read.
pub(crate) fn stored() -> Outcome<Vec<Vector>> {
    let folder = root().join("vectors/wire");
    let entries = std::fs::read_dir(&folder).map_err(|error| error.to_string())?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "hex"));
    paths.sort();
    let mut vectors = Vec::new();
    for path in paths {
        let text = std::fs::read_to_string(&path).map_err(|error| error.to_string())?;
        vectors.extend(
            parse_hex(&text)
                .map_err(|why| format!("cannot read the vectors in {}: {why}", path.display()))?,
        );
    }
    Ok(vectors)
}

/// Returns the fields of a frame, in the form in which a vector file contains them.
///
/// # Panics
/// Panics if the codec and the declared layout contradict each other. One purpose of the vectors is
/// to find contradictions of this kind.
fn show(frame: &[u8]) -> Value {
    let bytes = frame[..HEADER_BYTES].try_into().expect("a frame has a header");
    let (header, crc) = Header::parse(bytes).expect("the frames of examples are valid");
    let (body, data) = frame[HEADER_BYTES..].split_at(header.body_bytes as usize);
    check_body(body, crc).expect("the bodies of examples have correct checksums");
    let line = catalog::message(header.message).expect("examples are of known messages");
    let recoded = catalog::recode(header.message, header.is_reply(), body);
    assert_eq!(recoded, Some(Ok(body.to_vec())), "{}", line.name);
    let fields = if header.is_reply() { line.reply_fields } else { line.fields };
    json!({
        "header": read_all(HEADER_FIELDS, &header.to_bytes()),
        "body": read_all(fields, body),
        "data": schema::escape(data),
    })
}

fn read_all(fields: &[skep_types::codec::FieldDoc], bytes: &[u8]) -> Map<String, Value> {
    let mut r = Reader::new(bytes);
    let shown = schema::read(fields, &mut r)
        .expect("the encoder and the declared layout have the same fields");
    r.finish().expect("the encoder writes only the declared fields");
    shown
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).expect("a value tree can be printed") + "\n"
}

fn files_of(example: &Example) -> [Generated; 2] {
    let line = catalog::message(example.message).expect("examples are of known messages");
    let mut vectors: Vec<Vector> = Vec::new();
    for body in &example.bodies {
        let kind = if body.is_reply { "reply" } else { "request" };
        let earlier = vectors.iter().filter(|vector| vector.name.starts_with(kind)).count();
        let name = if earlier == 0 { kind.to_owned() } else { format!("{kind} {}", earlier + 1) };
        vectors.push(Vector { name, bytes: body.frame(example) });
    }
    let shown: Map<_, _> = vectors.iter().map(|v| (v.name.clone(), show(&v.bytes))).collect();
    let whole = json!({
        "message": line.name, "reply": line.reply, "version": example.version, "frames": shown,
    });
    let path = |extension| file(line.name, example.version, extension);
    [
        Generated { path: path("json"), text: pretty(&whole) },
        Generated { path: path("hex"), text: hex(&vectors) },
    ]
}

/// Returns the path of the vector file of a message.
pub(crate) fn file(message: &str, version: u16, extension: &str) -> PathBuf {
    let mut name = String::new();
    for letter in message.chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push('-');
        }
        name.push(letter.to_ascii_lowercase());
    }
    format!("vectors/wire/{name}-v{version}.{extension}").into()
}

/// Writes all vector files. With `check`, only checks that the files in the repository are up to
/// date.
///
/// # Errors
/// Lists stale files and messages without an example, or describes the reason why a file cannot be
/// written.
pub(crate) fn run(check: bool) -> Outcome {
    let examples = examples::all();
    let lacks = |id: u16| examples.iter().all(|example| example.message != id);
    let missing: Vec<_> = CATALOG.iter().filter(|line| lacks(line.id)).map(|l| l.name).collect();
    if !missing.is_empty() {
        return Err(format!(
            "these messages have no examples: {}; add examples in \
             crates/xtask/src/vectors/examples",
            missing.join(", ")
        ));
    }
    let mut files: Vec<Generated> = examples.iter().flat_map(files_of).collect();
    files.extend(malformed::files());
    write_or_check(&files, check, "cargo xtask vectors")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_dumps_survive_formatting_and_parsing() {
        let vectors = [Vector { name: "request".into(), bytes: (0..70).collect() }];
        let again = parse_hex(&hex(&vectors)).unwrap();
        assert_eq!((again.len(), &again[0].bytes), (1, &vectors[0].bytes));
        assert_eq!(again[0].name, "request");
        assert!(parse_hex("00").is_err());
        assert!(parse_hex("# a\n0g").is_err());
    }
}
