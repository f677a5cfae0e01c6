//! Bringing blobs back: leaves in parallel, each read, verified and handed on.

use std::sync::Arc;

use stdchk_object::Result;
use stdchk_object::tree::{Blob, Leaf, Piece};

use crate::buffers::Buffers;
use crate::vault::{LeafAt, Roots, Scratch, Vault};
use crate::workers::{Answer, Workers};

/// Takes the bytes of a blob, in any order and from several threads at once. What is never written is zeros.
pub trait Sink: Send + Sync {
    /// Takes bytes at an offset.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()>;
}

/// Leaves that may be under way at once, for each worker.
const AHEAD: usize = 2;

/// Reads a blob into `sink`. `progress` is told of bytes that are done.
pub fn restore_blob(
    vault: &Arc<Vault>,
    roots: &Arc<Roots>,
    blob: &Blob,
    workers: &Workers,
    sink: &Arc<dyn Sink>,
    progress: &dyn Fn(u64),
) -> Result<()> {
    let buffers = Buffers::new(workers.count() * AHEAD);
    let mut under_way: std::collections::VecDeque<(Answer<()>, u64)> = Default::default();
    let walked = vault.walk(roots, blob, 0..blob.len, &mut |start, at, len| {
        if at == LeafAt::Hole {
            progress(len);
            return Ok(());
        }
        if under_way.len() >= workers.count() * AHEAD
            && let Some((answer, len)) = under_way.pop_front()
        {
            answer.wait()?;
            progress(len);
        }
        let (vault, roots, blob) = (vault.clone(), roots.clone(), blob.clone());
        let (sink, buffers) = (sink.clone(), buffers.clone());
        let answer = workers.ask(move |_| {
            let leaf = vault.leaf(&roots, &blob, &at, len)?;
            restore_leaf(&vault, &roots, &leaf, start, &*sink, &buffers)
        });
        under_way.push_back((answer, len));
        Ok(())
    });
    // Whatever happened, nothing is left running that still writes into the sink.
    let mut result = walked;
    for (answer, len) in under_way {
        let done = answer.wait();
        if done.is_ok() {
            progress(len);
        }
        result = result.and(done);
    }
    result
}

fn restore_leaf(
    vault: &Vault,
    roots: &Roots,
    leaf: &Leaf,
    start: u64,
    sink: &dyn Sink,
    buffers: &Buffers,
) -> Result<()> {
    let mut scratch = Scratch::default();
    let mut buffer = buffers.take(leaf.bytes() as usize);
    let (mut at, mut from) = (0usize, 0usize);
    for piece in &leaf.pieces {
        let len = piece.bytes() as usize;
        match piece {
            Piece::Data(extent) => {
                vault.read_extent(roots, extent, &mut buffer[at..at + len], &mut scratch)?
            }
            Piece::Hole(_) => {
                if at > from {
                    sink.write_at(start + from as u64, &buffer[from..at])?;
                }
                from = at + len;
            }
        }
        at += len;
    }
    if at > from { sink.write_at(start + from as u64, &buffer[from..at]) } else { Ok(()) }
}
