//! `skep entry map`: shows which target stores each part of a file. A scheduler can use this output
//! to run a task near its data.

use super::pattern::{MAX_TEXT_BYTES, explained};
use crate::access::ClusterArgs;
use crate::help::{Example, examples};
use crate::output::{print, render, size, table};
use crate::path_lookup::entry_at;
use serde::Serialize;
use skep_cluster::striping;
use skep_fuse::MAP_XATTR;
use skep_service::ByteSize;
use skep_types::{
    Chooser, Component, Error, ErrorCode, GroupId, PatternOrigin, Redundancy, Result, StripePattern,
};
use std::path::PathBuf;

const EXAMPLES: &[Example] = &[
    ("show the targets of a file", "skep entry map /mnt/skep/file"),
    (
        "show the target of each piece of the first 64 MiB, for a scheduler",
        "skep entry map --offset 0 --length 64MiB --output json /mnt/skep/file",
    ),
];

/// Show the targets that store each part of a file
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct MapArgs {
    #[command(flatten)]
    query: ClusterArgs,
    /// Also show the target of each piece of a range of the file. The range begins at this offset
    /// in bytes: a number, or a number with KiB, MiB, ... [default with --length: 0]
    #[arg(long)]
    offset: Option<ByteSize>,
    /// Length of this range in bytes [default with --offset: up to the end of the file]
    #[arg(long)]
    length: Option<ByteSize>,
    /// Path of a file in a mount
    path: PathBuf,
}

/// Maximum number of pieces that the output shows for a range.
const MAX_PIECES: usize = 65_536;

#[derive(Debug, Serialize)]
struct Map {
    #[serde(serialize_with = "crate::output::path")]
    path: PathBuf,
    size_bytes: u64,
    components: Vec<MapComponent>,
    /// The pieces of the requested range. Each piece is on one target. Empty if no range is
    /// requested.
    pieces: Vec<Piece>,
}

#[derive(Debug, Serialize)]
struct MapComponent {
    start_byte: u64,
    /// Offset of the first byte after the component. `None` for the last component, which has no
    /// end.
    end_byte: Option<u64>,
    /// Chunk size in bytes. Zero means that the metadata target stores the bytes together with the
    /// inode.
    chunk_bytes: u64,
    /// The targets of the component in stripe order. Chunk k of the component is on the stripe with
    /// index k modulo the number of stripes.
    stripes: Vec<Stripe>,
}

#[derive(Debug, Clone, Serialize)]
struct Stripe {
    index: u64,
    group: u32,
    target: Option<u32>,
    node: Option<u32>,
    /// Address of the node that owns the target.
    address: Option<String>,
}

#[derive(Debug, Serialize)]
struct Piece {
    offset: u64,
    length: u64,
    component: u16,
    #[serde(flatten)]
    stripe: Stripe,
}

pub(crate) fn run(args: &MapArgs) -> Result<()> {
    let MapArgs { query, offset, length, path } = args;
    let (_, place) = entry_at(path)?;
    query.check_mount(&place)?;
    let metadata = std::fs::metadata(path).map_err(|error| {
        Error::from(error).within(format_args!("cannot read the attributes of {}", path.display()))
    })?;
    if !metadata.is_file() {
        let what = format!(
            "cannot map {}: the path is not a regular file, so no target stores its bytes",
            path.display()
        );
        return Err(Error::new(ErrorCode::InvalidArgument, what));
    }
    let mut bytes = vec![0; MAX_TEXT_BYTES];
    let len = rustix::fs::getxattr(path, MAP_XATTR, &mut bytes)
        .map_err(|errno| explained(errno, path, ""))?;
    let text = String::from_utf8_lossy(&bytes[..len]).into_owned();
    let components = read(&text).ok_or_else(|| {
        let what = format!(
            "cannot read the map of {}: the reply of the mount is malformed; check \
                            that the mount runs the same version of skep",
            path.display()
        );
        Error::new(ErrorCode::Protocol, what)
    })?;
    let pieces = match (offset, length) {
        (None, None) => Vec::new(),
        (offset, length) => {
            let start = offset.map_or(0, |it| it.0);
            let rest = metadata.len().saturating_sub(start);
            pieces(&components, start, length.map_or(rest, |it| it.0))?
        }
    };
    let map = Map { path: path.to_owned(), size_bytes: metadata.len(), components, pieces };
    print(&map, as_text)
}

/// Parses the value of the map attribute. `None` means that a line is malformed.
fn read(text: &str) -> Option<Vec<MapComponent>> {
    let mut parts: Vec<MapComponent> = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [start, end, chunk, _, index, group, target, node, address] = words[..] else {
            return None;
        };
        let id = |word: &str| word.get(1..).and_then(|id| id.parse().ok());
        let stripe = Stripe {
            index: index.parse().ok()?,
            group: id(group)?,
            target: id(target),
            node: id(node),
            address: (address != "-").then(|| address.to_owned()),
        };
        let start_byte = start.parse().ok()?;
        match parts.last_mut().filter(|part| part.start_byte == start_byte) {
            Some(part) => part.stripes.push(stripe),
            None => parts.push(MapComponent {
                start_byte,
                end_byte: end.parse().ok(),
                chunk_bytes: chunk.parse().ok()?,
                stripes: vec![stripe],
            }),
        }
    }
    Some(parts)
}

fn pieces(parts: &[MapComponent], start: u64, length: u64) -> Result<Vec<Piece>> {
    let component = |part: &MapComponent| match part.chunk_bytes {
        // A chunk size of 0 means that the bytes are stored with the inode and have no chunks.
        0 => Component::inline(),
        chunk_bytes => Component {
            start: part.start_byte,
            chunk_bytes,
            wanted: u16::try_from(part.stripes.len()).unwrap_or(u16::MAX),
            redundancy: Redundancy::Stripe,
            chooser: Chooser::Listed,
            groups: part.stripes.iter().map(|stripe| GroupId::new(stripe.group)).collect(),
        },
    };
    let components = parts.iter().map(component).collect();
    let pattern = StripePattern { generation: 1, origin: PatternOrigin::Asked, components };
    pattern.check()?;
    let range = start..start.saturating_add(length);
    let mut found = Vec::new();
    for piece in striping::pieces(&pattern, range)? {
        if found.len() == MAX_PIECES {
            let what = format!(
                "cannot show the range: the range has more than {MAX_PIECES} pieces; choose a \
                 shorter --length"
            );
            return Err(Error::new(ErrorCode::InvalidArgument, what));
        }
        let part = &parts[usize::from(piece.component)];
        found.push(Piece {
            offset: start + piece.offset_in_range,
            length: piece.length,
            component: piece.component,
            stripe: part.stripes[usize::from(piece.index)].clone(),
        });
    }
    Ok(found)
}

fn as_text(map: &Map) -> String {
    let shown = |stripe: &Stripe| {
        let number = |id: Option<u32>| id.map_or_else(|| "-".to_owned(), |id| id.to_string());
        let address = stripe.address.clone().unwrap_or_else(|| "-".into());
        [stripe.index.to_string(), number(stripe.target), number(stripe.node), address]
    };
    if !map.pieces.is_empty() {
        let mut lines = table(&[">OFFSET", ">LENGTH", ">STRIPE", ">TARGET", ">NODE", "ADDRESS"]);
        for piece in &map.pieces {
            let [index, target, node, address] = shown(&piece.stripe);
            let (offset, length) = (piece.offset.to_string(), piece.length.to_string());
            lines.add_row([offset, length, index, target, node, address]);
        }
        return render(&lines);
    }
    let mut lines = table(&[">FROM", ">TO", ">CHUNK", ">STRIPE", ">TARGET", ">NODE", "ADDRESS"]);
    for part in &map.components {
        let end = part.end_byte.map_or_else(|| "-".to_owned(), |end| end.to_string());
        for stripe in &part.stripes {
            let [index, target, node, address] = shown(stripe);
            let chunk = match part.chunk_bytes {
                0 => "-".to_owned(),
                bytes => size(bytes),
            };
            let start = part.start_byte.to_string();
            lines.add_row([start, end.clone(), chunk, index, target, node, address]);
        }
    }
    render(&lines)
}
